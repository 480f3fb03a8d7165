// What a TensorFlow kernel is made of, small: Eigen's GEMM and exp, and the helpers that libraries below it write for a
// feature that the compiler says is there (AES rounds in a hash, atomics, dot products, SVE). Checks its own results;
// which of the helpers is in it is the flags' work alone.
#include <Eigen/Dense>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>

#ifdef __AES__
#include <wmmintrin.h>
#endif
#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
#endif
#ifdef __ARM_FEATURE_SVE
#include <arm_sve.h>
#endif

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

static bool gemm() {
    Matrix a = Matrix::Random(48, 48), b = Matrix::Random(48, 48), c = a * b;
    for (int i = 0; i < 48; i += 7)
        for (int j = 0; j < 48; j += 5) {
            double sum = 0;
            for (int k = 0; k < 48; k++) sum += double(a(i, k)) * b(k, j);
            if (std::abs(sum - c(i, j)) > 1e-4) return false;
        }
    return true;
}

static bool exponential() {
    Eigen::ArrayXf x = Eigen::ArrayXf::LinSpaced(1000, -5, 5), y = x.exp();
    for (int i = 0; i < 1000; i += 37)
        if (std::abs(y(i) / std::exp(double(x(i))) - 1) > 1e-5) return false;
    return true;
}

// AES of a zero block with a zero key in one last round: each byte is S-box(0) = 0x63.
static bool hash() {
#ifdef __AES__
    volatile int64_t zero = 0;
    __m128i block = _mm_set1_epi64x(zero);
    return _mm_cvtsi128_si64(_mm_aesenclast_si128(block, block)) == 0x6363636363636363;
#else
    return true;
#endif
}

static bool shared() {
    static std::atomic<long> counter{40};
    counter.fetch_add(2);
    return counter.load(std::memory_order_acquire) == 42;
}

static bool dot() {
#ifdef __ARM_FEATURE_DOTPROD
    volatile unsigned char three = 3;
    uint8x16_t x = vdupq_n_u8(three);
    return vgetq_lane_u32(vdotq_u32(vdupq_n_u32(6), x, x), 2) == 42;
#else
    return true;
#endif
}

static bool scalable() {
#ifdef __ARM_FEATURE_SVE
    volatile int half = 21;
    return svaddv_s32(svptrue_pat_b32(SV_VL2), svdup_s32(half)) == 42;
#else
    return true;
#endif
}

int main() {
    struct { const char *name; bool (*run)(); } parts[] = {
        {"gemm", gemm}, {"exp", exponential}, {"hash", hash}, {"atomics", shared}, {"dot", dot}, {"sve", scalable},
    };
    for (auto &part : parts)
        if (!part.run()) {
            std::printf("%s is wrong\n", part.name);
            return 1;
        }
    std::puts("ran");
}
