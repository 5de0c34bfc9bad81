// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finding NCCL, and what its results mean here.

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace skein::dist {

SKEIN_INLINE std::string nccl_version_text(int number) {
    if (number < 10000) // before 2.9: 2804
        return fmt::format("{}.{}.{}", number / 1000, number % 1000 / 100, number % 100);
    return fmt::format("{}.{}.{}", number / 10000, number % 10000 / 100, number % 100);
}

SKEIN_INLINE nccl_type nccl_type_of(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return nccl_type::f32;
    case dtype::bf16: return nccl_type::bf16;
    case dtype::f64: return nccl_type::f64;
    case dtype::i64: return nccl_type::i64;
    case dtype::u8: return nccl_type::u8;
    case dtype::f16: return nccl_type::f16;
    }
    return nccl_type::u8;
}

SKEIN_INLINE std::vector<std::string> nccl_names() { return {"libnccl.so.2"}; }

SKEIN_INLINE result<nccl_library> nccl_from(const symbol_finder& find, std::string source) {
    nccl_library nccl;
    nccl.source = std::move(source);
    // The version first: an old library lacks functions, and its reader wants to know why.
    detail::bind_symbol(nccl.version, find("ncclGetVersion"));
    if (!nccl.version) {
        return error(errc::not_supported, fmt::format("{} is no NCCL", nccl.source))
            .with_cause("it lacks ncclGetVersion");
    }
    const nccl_result asked = nccl.version(&nccl.version_number);
    if (asked != nccl_result::success || nccl.version_number < oldest_nccl) {
        return error(errc::not_supported,
                     fmt::format("not supported: NCCL {} of {}, which is older than {}",
                                 nccl_version_text(nccl.version_number), nccl.source,
                                 nccl_version_text(oldest_nccl)))
            .with_hint("install a newer one: the wheel of nvidia-nccl-cu13, or libnccl2");
    }
    const auto missing = fill_table(nccl, find);
    if (!missing.empty()) {
        return error(errc::not_supported,
                     fmt::format("NCCL {} of {} lacks {}", nccl_version_text(nccl.version_number),
                                 nccl.source, fmt::join(missing, ", ")))
            .with_hint("it may have been built without them: install NVIDIA's own");
    }
    return nccl;
}

SKEIN_INLINE result<nccl_library> load_nccl(const std::vector<std::string>& names) {
    const auto found = shared_library::find(names);
    if (!found) {
        return error(errc::not_found, fmt::format("no NCCL: looked for {}", fmt::join(names, ", ")))
            .with_cause(found.error().cause())
            .with_hint("install the wheel of nvidia-nccl-cu13 or the package libnccl2, and put "
                       "its folder into LD_LIBRARY_PATH");
    }
    auto made = nccl_from([&](const char* name) { return found->symbol(name); }, found->path());
    if (made) made->was_loaded = found->was_loaded();
    return made;
}

SKEIN_INLINE error nccl_error(const nccl_library& nccl, nccl_result outcome, std::string_view what,
                              nccl_comm comm) {
    errc code = errc::io;
    std::string hint = "NCCL_DEBUG=WARN makes NCCL say more";
    switch (outcome) {
    case nccl_result::timeout: code = errc::timeout; break;
    case nccl_result::remote_error: code = errc::peer_lost; break;
    case nccl_result::invalid_argument:
    case nccl_result::invalid_usage: code = errc::invalid_argument; break;
    default: break;
    }
    const char* const text = nccl.error_text(outcome);
    std::string cause =
        fmt::format("{} (result {} of NCCL {})", text != nullptr ? text : "no text",
                    static_cast<int>(outcome), nccl_version_text(nccl.version_number));
    // Without a communicator these are the last words of the thread.
    const char* const words = nccl.last_error(comm);
    if (words != nullptr && *words != '\0') {
        const std::string_view said(words);
        cause += fmt::format(": {}", said.substr(0, 500));
        if (said.find("driver version is insufficient") != said.npos) {
            code = errc::not_supported;
            hint = "this machine has no driver of NVIDIA: install it, or train on the cpu";
        }
    }
    return error(code, fmt::format("nccl: cannot make {}", what))
        .with_cause(std::move(cause))
        .with_hint(std::move(hint));
}

SKEIN_INLINE void nccl_check(const nccl_library& nccl, nccl_result outcome, std::string_view what,
                             nccl_comm comm) {
    if (outcome == nccl_result::success || outcome == nccl_result::in_progress) return;
    throw nccl_error(nccl, outcome, what, comm);
}

} // namespace skein::dist
