// The report of macros, and for each feature that plain C++ reaches a function in which the compiler uses it.
#include <immintrin.h>

#include <cstdint>

#include "tensorflow/double/host_macros.h"
#include "tensorflow/double/macros.h"

extern "C" {

const char* double_macros() { return MACROS; }
const char* double_host_macros() { return HOST_MACROS; }

int double_popcnt(uint64_t x) { return __builtin_popcountll(x); }
int double_lzcnt(uint64_t x) { return x ? __builtin_clzll(x) : 64; }
uint64_t double_bmi1(uint64_t x, uint64_t y) { return ~x & y; }
uint64_t double_bmi2(uint64_t x, int by) { return x << by; }
uint64_t double_movbe(const uint64_t* x) { return __builtin_bswap64(*x); }
double double_fma(double x, double y, double z) { return x * y + z; }
void double_avx(const float* x, const float* y, float* z) {
  for (int i = 0; i < 1024; ++i) z[i] = x[i] * y[i];
}
void double_avx2(const int32_t* x, const int32_t* y, int32_t* z) {
  for (int i = 0; i < 1024; ++i) z[i] = x[i] + (y[i] < 0 ? -y[i] : y[i]);
}

#ifdef __SSE3__
__m128 double_sse3(__m128 x) { return _mm_hadd_ps(x, x); }
#endif
#ifdef __SSSE3__
__m128i double_ssse3(__m128i x, __m128i y) { return _mm_shuffle_epi8(x, y); }
#endif
#ifdef __SSE4_1__
__m128i double_sse4_1(__m128i x, __m128i y) { return _mm_min_epi32(x, y); }
#endif
#ifdef __SSE4_2__
uint32_t double_sse4_2(uint32_t crc, uint32_t x) { return _mm_crc32_u32(crc, x); }
#endif
#ifdef __AES__
__m128i double_aes(__m128i x, __m128i y) { return _mm_aesenc_si128(x, y); }
#endif
#ifdef __PCLMUL__
__m128i double_pclmulqdq(__m128i x, __m128i y) { return _mm_clmulepi64_si128(x, y, 0); }
#endif
#ifdef __F16C__
__m128i double_f16c(__m128 x) { return _mm_cvtps_ph(x, 0); }
#endif
#ifdef __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16
bool double_cx16(__int128* place, __int128 x, __int128 y) { return __sync_bool_compare_and_swap(place, x, y); }
#endif
#ifdef __AVX512F__
void double_avx512f(const float* x, float* y) {
  _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(y)));
}
#endif
}
