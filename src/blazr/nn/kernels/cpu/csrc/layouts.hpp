// Where the fields of calls lie, as the compiler placed them: Python declares the same structures, and
// a test holds these declarations to it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "kernels.hpp"

namespace {

// FOR_EACH(AT, Type, a, b) is AT(Type, a) AT(Type, b): a macro expands once in each scan, so that what
// it leaves for the next is scanned again.
#define PARENTHESES ()
#define SCAN(...) SCAN3(SCAN3(SCAN3(SCAN3(__VA_ARGS__))))
#define SCAN3(...) SCAN2(SCAN2(SCAN2(SCAN2(__VA_ARGS__))))
#define SCAN2(...) SCAN1(SCAN1(SCAN1(SCAN1(__VA_ARGS__))))
#define SCAN1(...) __VA_ARGS__
#define FOR_EACH(macro, type, ...) __VA_OPT__(SCAN(NEXT(macro, type, __VA_ARGS__)))
#define NEXT(macro, type, field, ...) \
  macro(type, field) __VA_OPT__(NEXT_AGAIN PARENTHESES(macro, type, __VA_ARGS__))
#define NEXT_AGAIN() NEXT
#define AT(type, field) " " + std::to_string(offsetof(type, field)) +
#define LAYOUT(type, ...) \
  std::string(#type " ") + std::to_string(sizeof(type)) + FOR_EACH(AT, type, __VA_ARGS__) "\n"

// A line for each: its name, its size, and where its fields begin.
std::string layouts() {
  const std::string all[] = {
      LAYOUT(Linear, x, w, w2, bias, y, dtype, m, n, k, ldw, ldx, ldy, wide, residual, scale, lora, lora2),
      LAYOUT(Lora, entries, slots, inner, repeat, stride),
      LAYOUT(LoraShrink, x, ids, entries, slots, inner, dtype, m, k, ldx, repeat, stride),
      LAYOUT(LoraExpand, y, bias, lora, dtype, m, n),
      LAYOUT(LinearHeads, first, heads, w_head, x_head, y_head),
      LAYOUT(PackedMatrix, blocks, row_scales),
      LAYOUT(PackedLinear, activations, w, w2, bias, y, room, packing, dtype, m, n, k, residual, scale, lora, lora2),
      LAYOUT(PackedRows, w, ids, y, packing, dtype, m, k),
      LAYOUT(Route, logits, bias, weights, ids, room, m, experts, top, scoring, normalize, groups, kept, judged_by, scale),
      LAYOUT(ExpertStack, w, row_scales, bias, packing, stride, ldw, n),
      LAYOUT(ExpertLoras, gate, up, down, slots, row_slots, inner, num_slots, stride),
      LAYOUT(Experts, x, ids, weights, gate, up, down, y, table, x_rows, sums, hidden, int8_room, dtype, m, top, k, inner, experts, activation, alpha, limit, loras),
      LAYOUT(Pointwise, a, b, out, kind, dtype, m, n, a_stride, b_stride, b_step, scale, cap),
      LAYOUT(Pieces, x, order, out, m, count, bytes, x_stride, stride),
      LAYOUT(Carried, kept, working, kept_stride, working_stride, dtype),
      LAYOUT(Window, kept, log, kept_slot, kept_row, log_run, log_row),
      LAYOUT(Sequences, spans, checkpoints, num_spans, num_tokens, longest),
      LAYOUT(LogRows, x, log, sequences, bytes, x_stride),
      LAYOUT(JoinPrevious, x, hidden, log, out, sequences, bytes, x_stride, hidden_stride),
      LAYOUT(KeepLast, hidden, log, sequences, bytes, hidden_stride),
      LAYOUT(Convolution, x, in_gate, out_gate, out, weight, bias, window, sequences, channels, taps, dtype, silu, x_stride, out_stride),
      LAYOUT(Mamba1, u, dt, b, c, gate, out, a, d, state, sequences, inner, state_size, dtype, b_stride, c_stride, gate_stride, limit),
      LAYOUT(Mamba2, proj, post, y, dt, out, conv_weight, conv_bias, dt_bias, a, d, norm_weight, multipliers, states, conv_states, log_raw, log_xb, log_dt, sequences, heads, head_dim, state_size, groups, taps, state_stride, conv_state_stride, dtype, state_dtype, norm, norm_groups, dt_min, dt_max, eps),
      LAYOUT(Mamba3, x, b, c, dt, mix, theta, out, norm, b_bias, c_bias, dt_bias, a, d, state, x_before, b_before, angle, sequences, heads, groups, width, state_size, dtype, silu, x_stride, map_stride, dt_stride, eps, dt_min, dt_max),
      LAYOUT(GatedDelta, q, k, v, decay, beta, gate, out, dt_bias, a, norm_weight, state, sequences, heads, key_heads, key_dim, value_dim, decays, norm, dtype, qkv_stride, decay_stride, beta_stride, gate_stride, eps, beta_scale, least),
      LAYOUT(RgLru, x, input_gate, decay_gate, out, input_bias, decay_bias, a, state, sequences, width, dtype),
      LAYOUT(GatedRows, x, gate, weight, out, m, n, groups, norm, gate_stride, dtype, eps),
      LAYOUT(Norm, x, weight, bias, out, dtype, m, inner, size, stride, eps, unit_offset),
      LAYOUT(Angles, frequencies, positions, out, tokens, pairs, factor),
      LAYOUT(PagedRows, first, page, row, head, size),
      LAYOUT(Rotary, q, k, v, cos, sin, slots, out, keys, values, tokens, heads, kv_heads, pairs, q_stride, q_head, k_stride, v_stride, out_stride, out_head, interleaved, dtype, stored),
      LAYOUT(Choice, scores, peaks, places, rows, size, stride, blocks, count),
      LAYOUT(Draw, scores, wishes, peaks, tallies, candidates, places, rows, size, stride, blocks, parts),
      LAYOUT(Repeat, tokens, following, length, most, longest, candidates, widest, most_replaced,
             replaced_cost, recent, match, num_agreed, num_replaced),
      LAYOUT(Pack, blocks, zeros, codebook, out, packing, rows, supers),
      LAYOUT(Encode, x, out, blocks),
      LAYOUT(DecodeFloats, numbers, scales, whole, table, out, format, scale_format, dtype, rows, first, k, height, width, is_divided),
      LAYOUT(Attention, q, keys[0], keys[1], values, out, sinks, block_tables, spans, table_stride, num_spans, longest, heads, kv_heads, window, dtype, stored, temperature_length, scale, softcap, temperature),
      LAYOUT(Recorded, run, call),
  };
  std::string text;
  for (const std::string& one : all) text += one;
  return text;
}

#undef LAYOUT
#undef AT
#undef NEXT_AGAIN
#undef NEXT
#undef FOR_EACH
#undef SCAN
#undef SCAN1
#undef SCAN2
#undef SCAN3
#undef PARENTHESES

}  // namespace
