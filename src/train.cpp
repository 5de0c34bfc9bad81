// SPDX-License-Identifier: Apache-2.0
// The bodies of torch, dist and train that need LibTorch, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/models/conv_ctc.hpp>
#include <skein/models/gpt2.hpp>
#include <skein/models/llama.hpp>
#include <skein/train/accumulator.hpp>
#include <skein/train/build.hpp>
#include <skein/train/detail/gradient_watch.hpp>
#include <skein/train/detail/shard_sums.hpp>
#include <skein/train/detail/sharded.hpp>
#include <skein/train/export_weights.hpp>
#include <skein/train/feed.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/offload.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/optimizers.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/recompute.hpp>
#include <skein/train/session.hpp>
#include <skein/train/single.hpp>
#include <skein/train/stage.hpp>
#include <skein/train/state_memory.hpp>
#include <skein/train/tensor_message.hpp>
#include <skein/train/training_state.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/weight_average.hpp>
#include <skein/train/weights.hpp>
#include <skein/train/wrap.hpp>

#include <skein/models/detail/conv_ctc.ipp>
#include <skein/models/detail/gpt2.ipp>
#include <skein/models/detail/llama.ipp>
#include <skein/train/detail/accumulator.ipp>
#include <skein/train/detail/build.ipp>
#include <skein/train/detail/export_weights.ipp>
#include <skein/train/detail/feed.ipp>
#include <skein/train/detail/feeder.ipp>
#include <skein/train/detail/flat.ipp>
#include <skein/train/detail/flat_taken.ipp>
#include <skein/train/detail/gradient_watch.ipp>
#include <skein/train/detail/memory_plan.ipp>
#include <skein/train/detail/offload.ipp>
#include <skein/train/detail/optimizer.ipp>
#include <skein/train/detail/optimizers.ipp>
#include <skein/train/detail/precision.ipp>
#include <skein/train/detail/recompute.ipp>
#include <skein/train/detail/session.ipp>
#include <skein/train/detail/session_between.ipp>
#include <skein/train/detail/session_clock.ipp>
#include <skein/train/detail/session_core.ipp>
#include <skein/train/detail/session_ends.ipp>
#include <skein/train/detail/session_evaluation.ipp>
#include <skein/train/detail/session_look.ipp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/session_plan.ipp>
#include <skein/train/detail/session_row.ipp>
#include <skein/train/detail/session_shards.ipp>
#include <skein/train/detail/session_stages.ipp>
#include <skein/train/detail/session_state.ipp>
#include <skein/train/detail/session_world.ipp>
#include <skein/train/detail/session_worlds.ipp>
#include <skein/train/detail/shard_sums.ipp>
#include <skein/train/detail/sharded.ipp>
#include <skein/train/detail/single.ipp>
#include <skein/train/detail/stage.ipp>
#include <skein/train/detail/state_memory.ipp>
#include <skein/train/detail/tensor_message.ipp>
#include <skein/train/detail/training_state.ipp>
#include <skein/train/detail/unit.ipp>
#include <skein/train/detail/unit_gatherer.ipp>
#include <skein/train/detail/unit_recompute.ipp>
#include <skein/train/detail/weight_average.ipp>
#include <skein/train/detail/weights.ipp>
#include <skein/train/detail/wrap.ipp>
