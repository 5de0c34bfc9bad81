// SPDX-License-Identifier: Apache-2.0
// The bodies of train that need no LibTorch, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/train/adaptive_batch.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/checkpoint_writer.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/description.hpp>
#include <skein/train/detail/shard_names.hpp>
#include <skein/train/detail/world_word.hpp>
#include <skein/train/device.hpp>
#include <skein/train/elastic_place.hpp>
#include <skein/train/element_values.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/manifest.hpp>
#include <skein/train/parameter_groups.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/reports.hpp>
#include <skein/train/run.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/run_result.hpp>
#include <skein/train/safetensors.hpp>
#include <skein/train/sampler.hpp>
#include <skein/train/schedule.hpp>
#include <skein/train/shard_layout.hpp>
#include <skein/train/snapshot.hpp>
#include <skein/train/verify_checkpoint.hpp>
#include <skein/train/weight_compare.hpp>
#include <skein/train/weight_folder.hpp>
#include <skein/train/weight_map.hpp>
#include <skein/train/weight_mean.hpp>
#include <skein/train/weight_source.hpp>

#include <skein/train/detail/adaptive_batch.ipp>
#include <skein/train/detail/checkpoint.ipp>
#include <skein/train/detail/checkpoint_load.ipp>
#include <skein/train/detail/checkpoint_parts.ipp>
#include <skein/train/detail/checkpoint_table.ipp>
#include <skein/train/detail/checkpoint_writer.ipp>
#include <skein/train/detail/collective.ipp>
#include <skein/train/detail/context.ipp>
#include <skein/train/detail/description.ipp>
#include <skein/train/detail/device.ipp>
#include <skein/train/detail/elastic_place.ipp>
#include <skein/train/detail/element_values.ipp>
#include <skein/train/detail/launch.ipp>
#include <skein/train/detail/launch_elastic.ipp>
#include <skein/train/detail/manifest.ipp>
#include <skein/train/detail/parameter_groups.ipp>
#include <skein/train/detail/reporter.ipp>
#include <skein/train/detail/reporter_screen.ipp>
#include <skein/train/detail/reporter_settings.ipp>
#include <skein/train/detail/reports.ipp>
#include <skein/train/detail/run.ipp>
#include <skein/train/detail/run_config.ipp>
#include <skein/train/detail/run_result.ipp>
#include <skein/train/detail/safetensors.ipp>
#include <skein/train/detail/sampler.ipp>
#include <skein/train/detail/schedule.ipp>
#include <skein/train/detail/shard_layout.ipp>
#include <skein/train/detail/shard_names.ipp>
#include <skein/train/detail/snapshot.ipp>
#include <skein/train/detail/verify_checkpoint.ipp>
#include <skein/train/detail/weight_compare.ipp>
#include <skein/train/detail/weight_folder.ipp>
#include <skein/train/detail/weight_map.ipp>
#include <skein/train/detail/weight_mean.ipp>
#include <skein/train/detail/weight_shards.ipp>
#include <skein/train/detail/weight_source.ipp>
#include <skein/train/detail/world_word.ipp>
