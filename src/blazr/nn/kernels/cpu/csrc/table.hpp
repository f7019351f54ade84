// The table of one instruction set.
#pragma once

#include <utility>

#include "attention.hpp"
#include "convolution.hpp"
#include "gated_delta.hpp"
#include "mamba1.hpp"
#include "experts.hpp"
#include "encode.hpp"
#include "floats.hpp"
#include "mamba2.hpp"
#include "mamba3.hpp"
#include "matmul.hpp"
#include "matmul_q.hpp"
#include "peak.hpp"
#include "pointwise.hpp"
#include "rows.hpp"
#include "sampling.hpp"
#include "rg_lru.hpp"

namespace {

template <class Isa, class T>
constexpr TypedKernels typed_kernels() {
  return {
      .peak = Peak<Isa>::template numbers<T>,
      .many_rows = kManyRows,
      .linear = Matmul<Isa, T>::part,
      .lora_shrink = LoraOf<Matmul<Isa, T>, T>::shrink,
      .lora_expand = LoraOf<Matmul<Isa, T>, T>::expand,
      .pointwise = PointwiseOf<T>::part,
      .quantize = quantize<T>,
      .finish = finish_packed<T>,
      .finish_wide = finish_packed<T, float>,
      .decode_floats = FloatsOf<T>::decode,
      .norm = RowParts<T>::norm,
      .rotate = {RowParts<T>::template rotate<Plain<T>>, RowParts<T>::template rotate<Q8_0>,
                 RowParts<T>::template rotate<Fp8>},
      .attend = {AttentionOf<Isa, T, Plain<T>>::attend, AttentionOf<Isa, T, Q8_0>::attend,
                 AttentionOf<Isa, T, Fp8>::attend},
      .mamba2_convolve = Mamba2Of<T>::convolve,
      .mamba2_recur = Mamba2Of<T>::recur,
      .mamba2_remember = Mamba2Of<T>::remember,
      .convolve = ConvolutionOf<T>::convolve,
      .convolve_remember = ConvolutionOf<T>::remember,
      .mamba1 = Mamba1Of<T>::scan,
      .mamba3 = Mamba3Of<T>::recur,
      .gated_delta = GatedDeltaOf<T>::recur,
      .rg_lru = RgLruOf<T>::scan,
      .mamba2_multiply = Mamba2Of<T>::multiply,
      .mamba2_finish = Mamba2Of<T>::finish,
      .gated_row = gated_row<T>,
      .expert_hidden = ExpertsOf<T>::hidden,
      .expert_combine = ExpertsOf<T>::combine,
  };
}

template <class Isa, int... kPackings>
constexpr Kernels kernels_of(std::integer_sequence<int, kPackings...>) {
  return {
      .typed = {typed_kernels<Isa, bf16>(), typed_kernels<Isa, f16>(), typed_kernels<Isa, float>()},
      .packed = {packed_kernel<Int8<Isa>, kPackings>()...},
      .peak = {Peak<Isa>::template codes<false>, Peak<Isa>::template codes<true>},
      .encode_q4_k = encode_q4_k,
      .route = route_token,
      .scan = Sampling::scan,
      .likeliest = Sampling::likeliest,
      .best = Sampling::best,
      .weigh = Sampling::weigh,
      .draw = Sampling::draw,
  };
}

constexpr std::make_integer_sequence<int, kNumPackings> kAllPackings;

}  // namespace
