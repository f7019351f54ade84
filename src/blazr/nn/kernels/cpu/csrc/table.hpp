// The table of one instruction set.
#pragma once

#include <utility>

#include "attention.hpp"
#include "convolution.hpp"
#include "gated_delta.hpp"
#include "mamba1.hpp"
#include "experts.hpp"
#include "encode.hpp"
#include "mamba2.hpp"
#include "mamba3.hpp"
#include "matmul.hpp"
#include "matmul_q.hpp"
#include "pointwise.hpp"
#include "rows.hpp"
#include "sampling.hpp"

namespace {

template <class T>
constexpr ExpertsParts experts_parts() {
  return {ExpertsOf<T>::hidden, ExpertsOf<T>::combine};
}

template <class T>
constexpr Mamba2Parts mamba2_parts() {
  using Of = Mamba2Of<T>;
  return {Of::multiply, Of::convolve, Of::recur, Of::finish, Of::remember};
}

template <class T>
constexpr ConvolutionParts convolution_parts() {
  return {ConvolutionOf<T>::convolve, ConvolutionOf<T>::remember};
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
      .convolution = {convolution_parts<bf16>(), convolution_parts<f16>(), convolution_parts<float>()},
      .mamba1 = {Mamba1Of<bf16>::scan, Mamba1Of<f16>::scan, Mamba1Of<float>::scan},
      .mamba3 = {Mamba3Of<bf16>::recur, Mamba3Of<f16>::recur, Mamba3Of<float>::recur},
      .gated_delta = {GatedDeltaOf<bf16>::recur, GatedDeltaOf<f16>::recur, GatedDeltaOf<float>::recur},
      .gated_rows = {gated_row<bf16>, gated_row<f16>, gated_row<float>},
      .attention = {AttentionOf<Isa, bf16>::attend, AttentionOf<Isa, f16>::attend,
                    AttentionOf<Isa, float>::attend},
      .norm = {RowParts<bf16>::norm, RowParts<f16>::norm, RowParts<float>::norm},
      .rotate = {RowParts<bf16>::rotate, RowParts<f16>::rotate, RowParts<float>::rotate},
      .pointwise = {PointwiseOf<bf16>::part<>, PointwiseOf<f16>::part<>, PointwiseOf<float>::part<>},
      .route = route_token,
      .experts = {experts_parts<bf16>(), experts_parts<f16>(), experts_parts<float>()},
      .sampling = {Sampling::scan, Sampling::likeliest, Sampling::best, Sampling::weigh,
                   Sampling::draw},
  };
}

}  // namespace
