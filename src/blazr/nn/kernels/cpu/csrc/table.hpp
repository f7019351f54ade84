// The table of one instruction set.
#pragma once

#include "attention.hpp"
#include "mamba2.hpp"
#include "matmul.hpp"
#include "matmul_q.hpp"

namespace {

template <class T>
constexpr Mamba2Parts mamba2_parts() {
  using Of = Mamba2Of<T>;
  return {Of::convolve, Of::recur, Of::finish, Of::remember};
}

template <class Isa>
constexpr Kernels kernels_of() {
  return {
      .linear = {Matmul<Isa, bf16>::part, Matmul<Isa, f16>::part, Matmul<Isa, float>::part},
      .quantize = {quantize<bf16>, quantize<f16>, quantize<float>},
      .packed = {{MatmulQ<Isa, bf16, 8>::part, MatmulQ<Isa, f16, 8>::part,
                  MatmulQ<Isa, float, 8>::part},
                 {MatmulQ<Isa, bf16, 4>::part, MatmulQ<Isa, f16, 4>::part,
                  MatmulQ<Isa, float, 4>::part}},
      .mamba2 = {mamba2_parts<bf16>(), mamba2_parts<f16>(), mamba2_parts<float>()},
      .attention = {AttentionOf<bf16>::attend, AttentionOf<f16>::attend, AttentionOf<float>::attend},
  };
}

}  // namespace
