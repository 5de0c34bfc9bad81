// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a program is to whoever has started it as one of several: its kind, said by the program
// itself before it trains.
//
// `skein run ./train` cannot know what ./train is. Each process that it starts has its place in the
// environment (RANK, WORLD_SIZE, ...), as torchrun gives it, and a socket to say more:
//
//     says nothing        any program: its place in the environment is all that it gets
//     program_kind::fixed    a rank of a fixed number: it is told where its group meets
//     program_kind::elastic  a worker that others join and leave: it is told where its supervisor is
//
// launch() says it. A program is elastic if there is a Trainer<Elastic<...>> anywhere in it: that
// is known before main, and a Trainer is made too late for a process that has to say who it is. Its
// file shows it, too, to who must know before anything is started.
//
//     spmd::tell_program_kind(spmd::own_program_kind());      // once, before there are threads
//     auto where = spmd::discover();

#include <skein/core/config.hpp>

#include <cstdint>
#include <string>

namespace skein::spmd {

enum class program_kind : std::uint8_t { fixed = 'f', elastic = 'e' };

/// In the boot message of a process that is to say its kind.
inline constexpr const char* asks_kind_variable = "SKEIN_ASKS_KIND";

/// Says it to the supervisor that has asked, and takes its answer into process_environment(). In
/// other processes, and the second time, it does nothing. A worker of an elastic job has no rank
/// yet: what its environment says of one is taken out.
///   errors  closed: the supervisor is gone; malformed: it has answered nonsense
void tell_program_kind(program_kind mine);

/// In the file of each program that has a Trainer<Elastic<...>>, and of no other.
inline constexpr char elastic_mark[] = "skein: this program has elastic workers";
/// This program has a Trainer<Elastic<...>>; said before main, with elastic_mark.
bool note_elastic_program(const char* mark) noexcept;
[[nodiscard]] program_kind own_program_kind() noexcept;

/// Whether the file of a program shows that it is elastic. A script shows nothing, whatever it
/// starts; nor does a file that cannot be read.
[[nodiscard]] bool shows_elastic(const std::string& executable);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/program_kind.ipp>
#endif
