// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer core, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/core/available_cores.hpp>
#include <skein/core/available_memory.hpp>
#include <skein/core/check.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/core/mounted_folder.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/read_number.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/time.hpp>
#include <skein/core/type_name.hpp>
#include <skein/core/units.hpp>

#include <skein/core/detail/available_cores.ipp>
#include <skein/core/detail/available_memory.ipp>
#include <skein/core/detail/check.ipp>
#include <skein/core/detail/crc32c.ipp>
#include <skein/core/detail/disk.ipp>
#include <skein/core/detail/error.ipp>
#include <skein/core/detail/file_limit.ipp>
#include <skein/core/detail/known_names.ipp>
#include <skein/core/detail/log.ipp>
#include <skein/core/detail/loop.ipp>
#include <skein/core/detail/metric_registry.ipp>
#include <skein/core/detail/mounted_folder.ipp>
#include <skein/core/detail/posix_disk.ipp>
#include <skein/core/detail/printable.ipp>
#include <skein/core/detail/read_number.ipp>
#include <skein/core/detail/scope.ipp>
#include <skein/core/detail/sha256.ipp>
#include <skein/core/detail/time.ipp>
#include <skein/core/detail/type_name.ipp>
#include <skein/core/detail/units.ipp>
