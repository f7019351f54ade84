// What AVX512-BF16 changes in the kernels of Avx512; compiled with its flags, called only where it is
// there.
#if defined(__x86_64__)
#include "isa_avx512.hpp"
//
#include "attention.hpp"
#include "matmul.hpp"
#include "peak.hpp"

Kernels with_avx512_bf16(Kernels kernels) {
  using Product = Matmul<Avx512Bf16, bf16>;
  TypedKernels& typed = kernels.typed[kBf16];
  typed.peak = Peak<Avx512Bf16>::numbers<bf16>;
  typed.linear = Product::part;
  typed.lora_shrink = LoraOf<Product, bf16>::shrink;
  typed.lora_expand = LoraOf<Product, bf16>::expand;
  // with codes of Q8_0 attention computes in whole numbers
  typed.attend[kPlain] = AttentionOf<Avx512Bf16, bf16, Plain<bf16>>::attend;
  typed.attend[kStoredFp8] = AttentionOf<Avx512Bf16, bf16, Fp8>::attend;
  return kernels;
}
#endif
