// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer proc, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/proc/boot.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/claims.hpp>
#include <skein/proc/detail/children.hpp>
#include <skein/proc/detail/process.hpp>
#include <skein/proc/detail/starter.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/host_load.hpp>
#include <skein/proc/leftovers.hpp>
#include <skein/proc/output.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/process_wait.hpp>
#include <skein/proc/shared_memory.hpp>
#include <skein/proc/standard_files.hpp>

#include <skein/proc/detail/boot.ipp>
#include <skein/proc/detail/build_id.ipp>
#include <skein/proc/detail/children.ipp>
#include <skein/proc/detail/claims.ipp>
#include <skein/proc/detail/gpus.ipp>
#include <skein/proc/detail/host_load.ipp>
#include <skein/proc/detail/leftovers.ipp>
#include <skein/proc/detail/output.ipp>
#include <skein/proc/detail/output_printer.ipp>
#include <skein/proc/detail/process.ipp>
#include <skein/proc/detail/process_look.ipp>
#include <skein/proc/detail/process_start.ipp>
#include <skein/proc/detail/process_wait.ipp>
#include <skein/proc/detail/shared_memory.ipp>
#include <skein/proc/detail/standard_files.ipp>
#include <skein/proc/detail/starter.ipp>
