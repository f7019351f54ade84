// The kernels for any processor, and those that would gain nothing from another.
#include "isa_portable.hpp"
//
#include "pack.hpp"
#include "table.hpp"

extern const Kernels kernels_portable = kernels_of<Portable>(kAllPackings);

template <int... kPackings>
static constexpr PackGroups pack_groups_of(std::integer_sequence<int, kPackings...>) {
  return {pack_group<kPackings>...};
}
extern const PackGroups pack_groups = pack_groups_of(kAllPackings);
