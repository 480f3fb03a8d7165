/* Loops that compilers write vector instructions for, with nothing but the compiler: no header, no library. */
void scale(float *restrict y, const float *restrict x, float a, int n) {
    for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}

int dot(const signed char *x, const signed char *y, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

int bits(const unsigned long *x, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += __builtin_popcountl(x[i]);
    return sum;
}

int add(int *shared, int more) { return __atomic_fetch_add(shared, more, __ATOMIC_ACQ_REL); }
