// The kernels for any processor.
#include "isa_portable.hpp"
//
#include "table.hpp"

extern const Kernels kernels_portable = kernels_of<Portable>(kAllPackings);
