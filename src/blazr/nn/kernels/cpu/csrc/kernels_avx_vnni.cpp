// The kernels for AvxVnni; compiled with its flags, called only where cpuid says it is there.
#if defined(__x86_64__)
#include "isa_avx2.hpp"
//
#include "table.hpp"

extern const Kernels kernels_avx_vnni = kernels_of<AvxVnni>(kAllPackings);
#endif
