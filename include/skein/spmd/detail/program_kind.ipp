// SPDX-License-Identifier: Apache-2.0
#pragma once
// One byte to the supervisor, and a map of variables from it.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/spmd/detail/environment.ipp>
#include <skein/spmd/detail/torch_variables.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/wire/decode.hpp>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace skein::spmd {

namespace detail {

SKEIN_INLINE std::atomic<bool>& has_elastic_trainer() noexcept {
    static constinit std::atomic<bool> has = false;
    return has;
}

/// Until the other side has said its last byte.
SKEIN_INLINE byte_buffer read_answer(int from) {
    byte_buffer all;
    std::byte piece[4096];
    for (;;) {
        const auto n = ::read(from, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return all;
        append(all, byte_span(piece, static_cast<std::size_t>(n)));
    }
}

} // namespace detail

SKEIN_INLINE bool note_elastic_program() noexcept {
    detail::has_elastic_trainer() = true;
    return true;
}

SKEIN_INLINE program_kind own_program_kind() noexcept {
    return detail::has_elastic_trainer() ? program_kind::elastic : program_kind::fixed;
}

SKEIN_INLINE void tell_program_kind(program_kind mine) {
    auto& start = detail::start_of_this_process();
    if (start.variables.erase(asks_kind_variable) == 0) return;
    const auto link = std::exchange(start.socket, unique_fd());
    ::fcntl(link.get(), F_SETFL, 0); // it may wait
    const auto word = static_cast<char>(mine);
    ssize_t sent = 0;
    do {
        sent = ::write(link.get(), &word, 1);
    } while (sent < 0 && errno == EINTR);
    const auto answer = sent == 1 ? detail::read_answer(link.get()) : byte_buffer();
    if (answer.empty())
        throw error(errc::closed, "the supervisor that has started this process is gone");
    auto told = wire::decode<std::map<std::string, std::string>>(answer);
    if (!told) throw told.error();
    if (told->contains(elastic_variable))
        for (const char* name : detail::torch_variables) ::unsetenv(name);
    for (auto& [name, value] : *told) start.variables.insert_or_assign(name, std::move(value));
}

} // namespace skein::spmd
