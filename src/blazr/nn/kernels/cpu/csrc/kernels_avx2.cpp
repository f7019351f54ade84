// The kernels for Avx2; compiled with its flags, called only where cpuid says it is there.
#if defined(__x86_64__)
#include "isa_avx2.hpp"
//
#include "table.hpp"

extern const Kernels kernels_avx2 = kernels_of<Avx2>(kAllPackings);
#endif
