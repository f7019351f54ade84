// The kernels for any processor, and those that would gain nothing from another.
#include "isa_portable.hpp"
//
#include "pack.hpp"
#include "table.hpp"

extern const Kernels kernels_portable = kernels_of<Portable>(kAllPackings);

void (*const pack_groups[kNumPackings])(const Pack&, int64_t) = {
    pack_group<kQ8_0>,    pack_group<kQ4_0>,     pack_group<kQ4_1>,     pack_group<kQ5_0>,
    pack_group<kQ5_1>,    pack_group<kIq4Nl>,    pack_group<kMxfp4>,    pack_group<kIq4Xs>,
    pack_group<kQ2K>,     pack_group<kQ3K>,      pack_group<kQ4K>,      pack_group<kQ5K>,
    pack_group<kQ6K>,     pack_group<kInt8>,     pack_group<kInt4By32>, pack_group<kInt4By64>,
    pack_group<kInt4By128>,
};
