// Generated from the list of feature macros: MACROS is the text of those that are defined here.
#ifdef __SSE3__
#define HAS__SSE3__ " __SSE3__"
#else
#define HAS__SSE3__ ""
#endif
#ifdef __SSSE3__
#define HAS__SSSE3__ " __SSSE3__"
#else
#define HAS__SSSE3__ ""
#endif
#ifdef __SSE4_1__
#define HAS__SSE4_1__ " __SSE4_1__"
#else
#define HAS__SSE4_1__ ""
#endif
#ifdef __SSE4_2__
#define HAS__SSE4_2__ " __SSE4_2__"
#else
#define HAS__SSE4_2__ ""
#endif
#ifdef __POPCNT__
#define HAS__POPCNT__ " __POPCNT__"
#else
#define HAS__POPCNT__ ""
#endif
#ifdef __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16
#define HAS__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16 " __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16"
#else
#define HAS__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16 ""
#endif
#ifdef __LAHF_SAHF__
#define HAS__LAHF_SAHF__ " __LAHF_SAHF__"
#else
#define HAS__LAHF_SAHF__ ""
#endif
#ifdef __AVX__
#define HAS__AVX__ " __AVX__"
#else
#define HAS__AVX__ ""
#endif
#ifdef __F16C__
#define HAS__F16C__ " __F16C__"
#else
#define HAS__F16C__ ""
#endif
#ifdef __FMA__
#define HAS__FMA__ " __FMA__"
#else
#define HAS__FMA__ ""
#endif
#ifdef __AVX2__
#define HAS__AVX2__ " __AVX2__"
#else
#define HAS__AVX2__ ""
#endif
#ifdef __BMI__
#define HAS__BMI__ " __BMI__"
#else
#define HAS__BMI__ ""
#endif
#ifdef __BMI2__
#define HAS__BMI2__ " __BMI2__"
#else
#define HAS__BMI2__ ""
#endif
#ifdef __LZCNT__
#define HAS__LZCNT__ " __LZCNT__"
#else
#define HAS__LZCNT__ ""
#endif
#ifdef __MOVBE__
#define HAS__MOVBE__ " __MOVBE__"
#else
#define HAS__MOVBE__ ""
#endif
#ifdef __XSAVE__
#define HAS__XSAVE__ " __XSAVE__"
#else
#define HAS__XSAVE__ ""
#endif
#ifdef __AES__
#define HAS__AES__ " __AES__"
#else
#define HAS__AES__ ""
#endif
#ifdef __PCLMUL__
#define HAS__PCLMUL__ " __PCLMUL__"
#else
#define HAS__PCLMUL__ ""
#endif
#ifdef __RDRND__
#define HAS__RDRND__ " __RDRND__"
#else
#define HAS__RDRND__ ""
#endif
#ifdef __RDSEED__
#define HAS__RDSEED__ " __RDSEED__"
#else
#define HAS__RDSEED__ ""
#endif
#ifdef __ADX__
#define HAS__ADX__ " __ADX__"
#else
#define HAS__ADX__ ""
#endif
#ifdef __SHA__
#define HAS__SHA__ " __SHA__"
#else
#define HAS__SHA__ ""
#endif
#ifdef __GFNI__
#define HAS__GFNI__ " __GFNI__"
#else
#define HAS__GFNI__ ""
#endif
#ifdef __VAES__
#define HAS__VAES__ " __VAES__"
#else
#define HAS__VAES__ ""
#endif
#ifdef __VPCLMULQDQ__
#define HAS__VPCLMULQDQ__ " __VPCLMULQDQ__"
#else
#define HAS__VPCLMULQDQ__ ""
#endif
#ifdef __FMA4__
#define HAS__FMA4__ " __FMA4__"
#else
#define HAS__FMA4__ ""
#endif
#ifdef __XOP__
#define HAS__XOP__ " __XOP__"
#else
#define HAS__XOP__ ""
#endif
#ifdef __AVX512F__
#define HAS__AVX512F__ " __AVX512F__"
#else
#define HAS__AVX512F__ ""
#endif
#ifdef __AVX512CD__
#define HAS__AVX512CD__ " __AVX512CD__"
#else
#define HAS__AVX512CD__ ""
#endif
#ifdef __AVX512BW__
#define HAS__AVX512BW__ " __AVX512BW__"
#else
#define HAS__AVX512BW__ ""
#endif
#ifdef __AVX512DQ__
#define HAS__AVX512DQ__ " __AVX512DQ__"
#else
#define HAS__AVX512DQ__ ""
#endif
#ifdef __AVX512VL__
#define HAS__AVX512VL__ " __AVX512VL__"
#else
#define HAS__AVX512VL__ ""
#endif
#ifdef __AVX512VBMI__
#define HAS__AVX512VBMI__ " __AVX512VBMI__"
#else
#define HAS__AVX512VBMI__ ""
#endif
#ifdef __AVX512VBMI2__
#define HAS__AVX512VBMI2__ " __AVX512VBMI2__"
#else
#define HAS__AVX512VBMI2__ ""
#endif
#ifdef __AVX512VNNI__
#define HAS__AVX512VNNI__ " __AVX512VNNI__"
#else
#define HAS__AVX512VNNI__ ""
#endif
#ifdef __AVX512BITALG__
#define HAS__AVX512BITALG__ " __AVX512BITALG__"
#else
#define HAS__AVX512BITALG__ ""
#endif
#ifdef __AVX512VPOPCNTDQ__
#define HAS__AVX512VPOPCNTDQ__ " __AVX512VPOPCNTDQ__"
#else
#define HAS__AVX512VPOPCNTDQ__ ""
#endif
#ifdef __AVX512IFMA__
#define HAS__AVX512IFMA__ " __AVX512IFMA__"
#else
#define HAS__AVX512IFMA__ ""
#endif
#ifdef __AVX512BF16__
#define HAS__AVX512BF16__ " __AVX512BF16__"
#else
#define HAS__AVX512BF16__ ""
#endif
#ifdef __AVX512FP16__
#define HAS__AVX512FP16__ " __AVX512FP16__"
#else
#define HAS__AVX512FP16__ ""
#endif
#ifdef __AVX512VP2INTERSECT__
#define HAS__AVX512VP2INTERSECT__ " __AVX512VP2INTERSECT__"
#else
#define HAS__AVX512VP2INTERSECT__ ""
#endif
#ifdef __AVXVNNI__
#define HAS__AVXVNNI__ " __AVXVNNI__"
#else
#define HAS__AVXVNNI__ ""
#endif
#ifdef __AVXIFMA__
#define HAS__AVXIFMA__ " __AVXIFMA__"
#else
#define HAS__AVXIFMA__ ""
#endif
#ifdef __AVXVNNIINT8__
#define HAS__AVXVNNIINT8__ " __AVXVNNIINT8__"
#else
#define HAS__AVXVNNIINT8__ ""
#endif
#ifdef __AVXNECONVERT__
#define HAS__AVXNECONVERT__ " __AVXNECONVERT__"
#else
#define HAS__AVXNECONVERT__ ""
#endif
#ifdef __AVXVNNIINT16__
#define HAS__AVXVNNIINT16__ " __AVXVNNIINT16__"
#else
#define HAS__AVXVNNIINT16__ ""
#endif
#ifdef __AMX_TILE__
#define HAS__AMX_TILE__ " __AMX_TILE__"
#else
#define HAS__AMX_TILE__ ""
#endif
#ifdef __AMX_INT8__
#define HAS__AMX_INT8__ " __AMX_INT8__"
#else
#define HAS__AMX_INT8__ ""
#endif
#ifdef __AMX_BF16__
#define HAS__AMX_BF16__ " __AMX_BF16__"
#else
#define HAS__AMX_BF16__ ""
#endif
#ifdef __AMX_FP16__
#define HAS__AMX_FP16__ " __AMX_FP16__"
#else
#define HAS__AMX_FP16__ ""
#endif
#define MACROS \
  HAS__SSE3__ \
  HAS__SSSE3__ \
  HAS__SSE4_1__ \
  HAS__SSE4_2__ \
  HAS__POPCNT__ \
  HAS__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16 \
  HAS__LAHF_SAHF__ \
  HAS__AVX__ \
  HAS__F16C__ \
  HAS__FMA__ \
  HAS__AVX2__ \
  HAS__BMI__ \
  HAS__BMI2__ \
  HAS__LZCNT__ \
  HAS__MOVBE__ \
  HAS__XSAVE__ \
  HAS__AES__ \
  HAS__PCLMUL__ \
  HAS__RDRND__ \
  HAS__RDSEED__ \
  HAS__ADX__ \
  HAS__SHA__ \
  HAS__GFNI__ \
  HAS__VAES__ \
  HAS__VPCLMULQDQ__ \
  HAS__FMA4__ \
  HAS__XOP__ \
  HAS__AVX512F__ \
  HAS__AVX512CD__ \
  HAS__AVX512BW__ \
  HAS__AVX512DQ__ \
  HAS__AVX512VL__ \
  HAS__AVX512VBMI__ \
  HAS__AVX512VBMI2__ \
  HAS__AVX512VNNI__ \
  HAS__AVX512BITALG__ \
  HAS__AVX512VPOPCNTDQ__ \
  HAS__AVX512IFMA__ \
  HAS__AVX512BF16__ \
  HAS__AVX512FP16__ \
  HAS__AVX512VP2INTERSECT__ \
  HAS__AVXVNNI__ \
  HAS__AVXIFMA__ \
  HAS__AVXVNNIINT8__ \
  HAS__AVXNECONVERT__ \
  HAS__AVXVNNIINT16__ \
  HAS__AMX_TILE__ \
  HAS__AMX_INT8__ \
  HAS__AMX_BF16__ \
  HAS__AMX_FP16__
