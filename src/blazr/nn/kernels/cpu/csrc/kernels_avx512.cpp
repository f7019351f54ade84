// The kernels for Avx512; compiled with its flags, called only where cpuid says it is there.
#if defined(__x86_64__)
#include "isa_avx512.hpp"
//
#include "table.hpp"

extern const Kernels kernels_avx512 = kernels_of<Avx512>(kAllPackings);
#endif
