// One of several like it: GEMM and exp from Eigen, as TensorFlow's own kernels are made.
#include <Eigen/Core>

#define JOIN(a, b) a##b
#define NAME(prefix, number) JOIN(prefix, number)

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic>;

extern "C" void NAME(double_gemm_, KERNEL)(const float* a, const float* b, float* c, long n) {
  const Eigen::Map<const Matrix> left(a, n, n), right(b, n, n);
  Eigen::Map<Matrix> result(c, n, n);
  result.noalias() = left * right;
  result.array() += KERNEL;
}

extern "C" void NAME(double_exp_, KERNEL)(const float* in, float* out, long n) {
  const Eigen::Map<const Eigen::ArrayXf> from(in, n);
  Eigen::Map<Eigen::ArrayXf>(out, n) = from.exp() + float(KERNEL);
}
