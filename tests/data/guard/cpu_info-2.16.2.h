// tensorflow_cpu 2.16.2, include/tensorflow/tsl/platform/cpu_info.h (Apache License 2.0), the enum alone
enum CPUFeature {
  // Do not change numeric assignments.
  MMX = 0,
  SSE = 1,
  SSE2 = 2,
  SSE3 = 3,
  SSSE3 = 4,
  SSE4_1 = 5,
  SSE4_2 = 6,
  CMOV = 7,
  CMPXCHG8B = 8,
  CMPXCHG16B = 9,
  POPCNT = 10,
  AES = 11,
  AVX = 12,
  RDRAND = 13,
  AVX2 = 14,
  FMA = 15,
  F16C = 16,
  PCLMULQDQ = 17,
  RDSEED = 18,
  ADX = 19,
  SMAP = 20,

  // Prefetch Vector Data Into Caches with Intent to Write and T1 Hint
  // http://www.felixcloutier.com/x86/PREFETCHWT1.html.
  // You probably want PREFETCHW instead.
  PREFETCHWT1 = 21,

  BMI1 = 22,
  BMI2 = 23,
  HYPERVISOR = 25,  // 0 when on a real CPU, 1 on (well-behaved) hypervisor.

  // Prefetch Data into Caches in Anticipation of a Write (3D Now!).
  // http://www.felixcloutier.com/x86/PREFETCHW.html
  PREFETCHW = 26,

  // AVX-512: 512-bit vectors (plus masking, etc.) in Knights Landing,
  // Skylake, Xeon, etc. Each of these entries is a different subset of
  // instructions, various combinations of which occur on various CPU types.
  AVX512F = 27,        // Foundation
  AVX512CD = 28,       // Conflict detection
  AVX512ER = 29,       // Exponential and reciprocal
  AVX512PF = 30,       // Prefetching
  AVX512VL = 31,       // Shorter vector lengths
  AVX512BW = 32,       // Byte and word
  AVX512DQ = 33,       // Dword and qword
  AVX512VBMI = 34,     // Bit manipulation
  AVX512IFMA = 35,     // Integer multiply-add
  AVX512_4VNNIW = 36,  // Integer neural network (Intel Xeon Phi only)
  AVX512_4FMAPS = 37,  // Floating point neural network (Intel Xeon Phi only)
  AVX512_VNNI = 38,    // Integer neural network
  AVX512_BF16 = 39,    // Bfloat16 neural network

  // AVX version of AVX512_VNNI in CPUs such as Alder Lake and Sapphire Rapids.
  AVX_VNNI = 40,  // Integer neural network

  // AMX: Advanced Matrix Extension in Sapphire Rapids.
  // Perform matrix multiplication on the Tile Matrix Multiply (TMUL) unit,
  // supporting two popular data types in neural networks, int8 and bfloat16.
  AMX_TILE = 41,  // Tile configuration and load/store
  AMX_INT8 = 42,  // Int8 tile matrix multiplication
  AMX_BF16 = 43,  // Bfloat16 tile matrix multiplication

  AVX512_FP16 = 44,     // Float16 neural network
  AMX_FP16 = 45,        // Float16 tile matrix multiplication
  AVX_NE_CONVERT = 46,  // Instructions for faster bfloat16, float16 convert.
  AVX_VNNI_INT8 = 47,   // VNNI instructions for combinations of u8, s8 dtypes.
};
