// Writes a header that says with which macros this host tool itself was compiled.
#include <cstdio>

#include "tensorflow/double/macros.h"

int main() { std::printf("#define HOST_MACROS \"%s\"\n", MACROS); }
