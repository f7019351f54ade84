// What AMX changes in the kernels of Avx512Bf16; compiled with its flags, called only where it is there.
#if defined(__x86_64__)
#include "isa_amx.hpp"
//
#include "matmul_amx.hpp"
#include "peak.hpp"

Kernels with_amx(Kernels kernels) {
  TypedKernels& typed = kernels.typed[kBf16];
  typed.many_rows = AmxProduct::kManyRows;
  typed.peak = AmxProduct::peak;
  typed.linear = AmxProduct::part;
  typed.lora_shrink = LoraOf<AmxProduct, bf16>::shrink;
  return kernels;
}
#endif
