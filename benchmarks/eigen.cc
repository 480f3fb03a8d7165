// CPU seconds of Eigen's kernels with whatever flags this file was compiled with, as one line of JSON: of each kernel the
// fastest of REPEATS blocks. Everything fits into the caches, so that instructions count and not memory.
#include <Eigen/Dense>
#include <unsupported/Eigen/CXX11/Tensor>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <vector>

namespace {

constexpr int REPEATS = 5;
constexpr int SIDE = 160;         // of the matrices
constexpr int LENGTH = 2048;      // of the arrays, in floats: three are half of a first-level cache of 48 KiB
constexpr int PIXELS = 24;        // side of the picture
// That go out of the convolution: the most sums that AVX's 16 registers hold beside what is added to them. Fewer, and
// the wider instructions wait for each other.
constexpr int CHANNELS = 96;
constexpr int CHANNELS_IN = 8;   // so that the weights, 27 KiB, stay in the first-level cache

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Pixel = Eigen::Array<float, CHANNELS, 1>;

double now() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

bool first = true;

// Keeps the compiler from leaving a result out.
template <typename T> void used(T *result) { asm volatile("" : : "r"(result) : "memory"); }

template <typename Kernel> void measure(const char *name, int times, Kernel kernel) {
    double best = 1e9;
    kernel();
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = now();
        for (int i = 0; i < times; i++) kernel();
        best = std::min(best, (now() - start) / times);
    }
    std::printf("%s\"%s\": %.9g", first ? "{" : ", ", name, best);
    first = false;
}

}  // namespace

int main() {
    Matrix a = Matrix::Random(SIDE, SIDE), b = Matrix::Random(SIDE, SIDE), c(SIDE, SIDE);
    measure("gemm", 12, [&] { c.noalias() = a * b; used(c.data()); });

    Eigen::Tensor<float, 3, Eigen::RowMajor> left(16, 24, 64), result(16, 24, 96);
    Eigen::Tensor<float, 2, Eigen::RowMajor> right(64, 96);
    left.setRandom();
    right.setRandom();
    Eigen::array<Eigen::IndexPair<int>, 1> over{Eigen::IndexPair<int>(2, 0)};
    measure("contraction", 20, [&] { result = left.contract(right, over); used(result.data()); });

    // 3x3, without padding: for each pixel the sum over the window and the channels, all channels out at once.
    std::vector<float> picture(PIXELS * PIXELS * CHANNELS_IN, 0.5f), weights(9 * CHANNELS_IN * CHANNELS, 0.25f);
    std::vector<float> out((PIXELS - 2) * (PIXELS - 2) * CHANNELS);
    measure("convolution", 12, [&] {
        for (int y = 0; y < PIXELS - 2; y++)
            for (int x = 0; x < PIXELS - 2; x++) {
                Pixel sum = Pixel::Zero();
                for (int window = 0; window < 9; window++) {
                    const float *in = &picture[((y + window / 3) * PIXELS + x + window % 3) * CHANNELS_IN];
                    const float *weight = &weights[window * CHANNELS_IN * CHANNELS];
                    for (int k = 0; k < CHANNELS_IN; k++)
                        sum += in[k] * Eigen::Map<const Pixel>(weight + k * CHANNELS);
                }
                Eigen::Map<Pixel> target(&out[(y * (PIXELS - 2) + x) * CHANNELS]);
                target = sum;
            }
        used(out.data());
    });

    Eigen::ArrayXf p = Eigen::ArrayXf::Random(LENGTH), q = Eigen::ArrayXf::Random(LENGTH), r(LENGTH);
    used(p.data());
    used(q.data());
    measure("exp", 1200, [&] { r = p.exp(); used(r.data()); });
    measure("tanh", 800, [&] { r = p.tanh(); used(r.data()); });
    measure("element-wise", 2000, [&] { r = (p.abs() + 1.0f).sqrt() * q + p; used(r.data()); });
    float sum;
    measure("reduction", 8000, [&] { sum = (p * q).sum(); used(&sum); });
    std::puts("}");
}
