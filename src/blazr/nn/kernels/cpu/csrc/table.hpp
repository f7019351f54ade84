// The table of one instruction set.
#pragma once

#include <utility>

#include "attention.hpp"
#include "encode.hpp"
#include "mamba2.hpp"
#include "matmul.hpp"
#include "matmul_q.hpp"
#include "pointwise.hpp"
#include "rows.hpp"

namespace {

template <class T>
constexpr Mamba2Parts mamba2_parts() {
  using Of = Mamba2Of<T>;
  return {Of::convolve, Of::recur, Of::finish, Of::remember};
}

constexpr std::make_integer_sequence<int, kNumPackings> kAllPackings;

template <class Isa, int... kPackings>
constexpr Kernels kernels_of(std::integer_sequence<int, kPackings...>) {
  return {
      .linear = {Matmul<Isa, bf16>::part, Matmul<Isa, f16>::part, Matmul<Isa, float>::part},
      .quantize = {quantize<bf16>, quantize<f16>, quantize<float>},
      .finish = {finish_packed<bf16>, finish_packed<f16>, finish_packed<float>},
      .packed = {packed_kernel<Int8<Isa>, kPackings>()...},
      .encode_q4_k = encode_q4_k,
      .mamba2 = {mamba2_parts<bf16>(), mamba2_parts<f16>(), mamba2_parts<float>()},
      .attention = {AttentionOf<bf16>::attend, AttentionOf<f16>::attend, AttentionOf<float>::attend},
      .norm = {RowParts<bf16>::norm, RowParts<f16>::norm, RowParts<float>::norm},
      .rotate = {RowParts<bf16>::rotate, RowParts<f16>::rotate, RowParts<float>::rotate},
      .pointwise = {PointwiseOf<bf16>::part<>, PointwiseOf<f16>::part<>, PointwiseOf<float>::part<>},
  };
}

}  // namespace
