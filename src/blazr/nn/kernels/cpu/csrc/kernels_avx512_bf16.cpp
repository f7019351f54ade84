// The kernels for Avx512Bf16; compiled with its flags, called only where cpuid says it is there.
#if defined(__x86_64__)
#include "isa_avx512.hpp"
//
#include "table.hpp"

extern const Kernels kernels_avx512_bf16 = kernels_of<Avx512Bf16>(kAllPackings);
#endif
