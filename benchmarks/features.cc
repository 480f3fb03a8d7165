// Code in which a CPU feature beyond the levels could show: Eigen's packets of half and bfloat16, and plain loops as
// TensorFlow's kernels have them, which the compiler vectorizes itself. It is compiled, and never run.
#include <Eigen/Core>
#include <cstddef>
#include <cstdint>

using Half = Eigen::Array<Eigen::half, Eigen::Dynamic, 1>;
using Brain = Eigen::Array<Eigen::bfloat16, Eigen::Dynamic, 1>;
using Floats = Eigen::ArrayXf;

void half_chain(const Half &a, const Half &b, Half &out) { out = (a.abs() + b).sqrt() * a; }
Eigen::half half_sum(const Half &a, const Half &b) { return (a * b).sum(); }
void half_cast(const Floats &a, Half &out) { out = a.cast<Eigen::half>(); }
void bfloat16_chain(const Brain &a, const Brain &b, Brain &out) { out = (a.abs() + b).sqrt() * a; }
void bfloat16_cast(const Floats &a, Brain &out) { out = a.cast<Eigen::bfloat16>(); }

template <typename A, typename B, typename Sum>
Sum dot(const A *__restrict a, const B *__restrict b, std::size_t length) {
    Sum sum = 0;
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) sum += Sum(a[i]) * Sum(b[i]);
    return sum;
}
template int32_t dot<uint8_t, int8_t, int32_t>(const uint8_t *, const int8_t *, std::size_t);
template int32_t dot<int8_t, int8_t, int32_t>(const int8_t *, const int8_t *, std::size_t);
template int32_t dot<uint8_t, uint8_t, int32_t>(const uint8_t *, const uint8_t *, std::size_t);
template int32_t dot<int16_t, int16_t, int32_t>(const int16_t *, const int16_t *, std::size_t);
template float dot<float, float, float>(const float *, const float *, std::size_t);

// The loops of bitwise.population_count, of a cast, of a gather, of a shift and of a comparison.
void population_count(const uint32_t *__restrict in, uint8_t *__restrict out, std::size_t length) {
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) out[i] = uint8_t(__builtin_popcount(in[i]));
}
void quantize(const float *__restrict in, int8_t *__restrict out, float scale, std::size_t length) {
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) out[i] = int8_t(in[i] * scale);
}
void gather(const float *__restrict in, const int32_t *__restrict at, float *__restrict out, std::size_t length) {
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) out[i] = in[at[i]];
}
void shift(const uint8_t *__restrict in, uint8_t *__restrict out, std::size_t length) {
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) out[i] = uint8_t(in[i] >> 3);
}
void where(const float *__restrict a, const float *__restrict b, float *__restrict out, std::size_t length) {
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) out[i] = a[i] > b[i] ? a[i] : 0;
}
void deinterleave(const uint8_t *__restrict in, uint8_t *__restrict out, std::size_t length) {
    for (std::size_t i = 0; i < (length & ~std::size_t(63)); i++) out[i] = in[2 * i];
}
