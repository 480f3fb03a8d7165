// Counts the values that casts to Eigen's fixed-point types put in a wrong place, one line per cast.
// HEADER: the tree's FixedPoint header, quoted.
#include <cstdio>

#include "unsupported/Eigen/CXX11/Tensor"
#include HEADER

template <class From, class To>
void count(const char* name, int below) {
  const int size = 1024;
  Eigen::Tensor<From, 1> values(size);
  for (int i = 0; i < size; i++) values(i) = From(i % below);
  const Eigen::Tensor<To, 1> cast = values.template cast<To>();
  int wrong = 0;
  for (int i = 0; i < size; i++) wrong += int(cast(i).value) != i % below;
  std::printf("%s\t%d\t%d\n", name, wrong, size);
}

int main() {
  count<float, Eigen::QInt8>("float to qint8", 127);
  count<float, Eigen::QInt16>("float to qint16", 1000);
  count<float, Eigen::QUInt8>("float to quint8", 255);
  count<Eigen::QInt32, Eigen::QInt8>("qint32 to qint8", 127);
  count<Eigen::QInt32, Eigen::QInt16>("qint32 to qint16", 1000);
  count<Eigen::QInt32, Eigen::QUInt8>("qint32 to quint8", 255);
}
