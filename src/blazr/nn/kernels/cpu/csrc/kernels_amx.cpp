// What AMX changes in the kernels of Avx512Bf16; compiled with its flags, called only where it is there.
#if defined(__x86_64__)
#include "isa_amx.hpp"
//
#include "attention_amx.hpp"
#include "matmul_amx.hpp"
#include "matmul_q_amx.hpp"
#include "peak.hpp"

namespace {

template <int... kPackings>
void put_packed(Kernels& kernels, std::integer_sequence<int, kPackings...>) {
  (AmxMatmulQ<std::tuple_element_t<kPackings, Packings<Int8<Avx512>>>>::put(kernels.packed[kPackings]), ...);
}

}  // namespace

Kernels with_amx(Kernels kernels) {
  TypedKernels& typed = kernels.typed[kBf16];
  typed.many_rows = AmxProduct::kManyRows;
  typed.peak = AmxProduct::peak;
  typed.linear = AmxProduct::part;
  typed.lora_shrink = LoraOf<AmxProduct, bf16>::shrink;
  typed.attend[kPlain] = AmxAttention::attend;
  put_packed(kernels, std::make_integer_sequence<int, kNumPackings>());
  return kernels;
}
#endif
