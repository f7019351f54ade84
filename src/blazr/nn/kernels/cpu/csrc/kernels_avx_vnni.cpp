// What AVX-VNNI changes in the kernels of Avx2; compiled with its flags, called only where it is there.
#if defined(__x86_64__)
#include <utility>

#include "isa_avx2.hpp"
//
#include "attention.hpp"
#include "matmul_q.hpp"
#include "peak.hpp"

namespace {

template <int... kPackings>
void put_packed(Kernels& kernels, std::integer_sequence<int, kPackings...>) {
  ((kernels.packed[kPackings] = packed_kernel<Int8<AvxVnni>, kPackings>()), ...);
}

}  // namespace

Kernels with_avx_vnni(Kernels kernels) {
  put_packed(kernels, std::make_integer_sequence<int, kNumPackings>());
  kernels.peak[0] = Peak<AvxVnni>::codes<false>;
  kernels.peak[1] = Peak<AvxVnni>::codes<true>;
  // with other dtypes, and of keys that are not codes, attention computes in float32
  kernels.typed[kBf16].attend[kStoredQ8_0] = AttentionOf<AvxVnni, bf16, Q8_0>::attend;
  kernels.typed[kF16].attend[kStoredQ8_0] = AttentionOf<AvxVnni, f16, Q8_0>::attend;
  return kernels;
}
#endif
