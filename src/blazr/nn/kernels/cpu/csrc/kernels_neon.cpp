// The kernels for Neon; compiled with its flags, called only where the processor says it is there.
#if defined(__aarch64__)
#include "isa_neon.hpp"
//
#include "table.hpp"

extern const Kernels kernels_neon = kernels_of<Neon>(kAllPackings);
#endif
