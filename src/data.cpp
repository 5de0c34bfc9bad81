// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer data, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/data/arena.hpp>
#include <skein/data/blur.hpp>
#include <skein/data/desk.hpp>
#include <skein/data/detail/blur_kernels.hpp>
#include <skein/data/detail/draws_kernels.hpp>
#include <skein/data/detail/folder_index.hpp>
#include <skein/data/detail/folder_listing.hpp>
#include <skein/data/detail/loader_core.hpp>
#include <skein/data/detail/pipeline_parts.hpp>
#include <skein/data/detail/resize_kernels.hpp>
#include <skein/data/detail/row_engine.hpp>
#include <skein/data/detail/row_messages.hpp>
#include <skein/data/detail/row_program.hpp>
#include <skein/data/detail/rows.hpp>
#include <skein/data/detail/self_test.hpp>
#include <skein/data/draws.hpp>
#include <skein/data/explain.hpp>
#include <skein/data/folder.hpp>
#include <skein/data/pixels.hpp>
#include <skein/data/resize.hpp>
#include <skein/data/slots.hpp>

#include <skein/data/detail/arena.ipp>
#include <skein/data/detail/blur.ipp>
#include <skein/data/detail/blur_kernels.ipp>
#include <skein/data/detail/desk.ipp>
#include <skein/data/detail/draws.ipp>
#include <skein/data/detail/draws_kernels.ipp>
#include <skein/data/detail/explain.ipp>
#include <skein/data/detail/folder.ipp>
#include <skein/data/detail/folder_index.ipp>
#include <skein/data/detail/folder_listing.ipp>
#include <skein/data/detail/loader_core.ipp>
#include <skein/data/detail/pipeline_parts.ipp>
#include <skein/data/detail/pixels.ipp>
#include <skein/data/detail/resize.ipp>
#include <skein/data/detail/resize_kernels.ipp>
#include <skein/data/detail/row_engine.ipp>
#include <skein/data/detail/row_engine_helpers.ipp>
#include <skein/data/detail/row_messages.ipp>
#include <skein/data/detail/row_program.ipp>
#include <skein/data/detail/rows.ipp>
#include <skein/data/detail/self_test.ipp>
#include <skein/data/detail/slots.ipp>
