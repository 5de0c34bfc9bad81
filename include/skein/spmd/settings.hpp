// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings that every rank of a world must have alike (rate, batch, seed, ...), compared by value
// so that a difference is named and not trained into two models.
//
//     std::vector<setting> mine{{"seed", "1"}, {"lr", "0.003"}};
//     require_same(world, "optimizer", mine);     // mismatch: rank 1 has lr 0.1, rank 0 has 0.003

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {

/// One of them. The text of a number is made by one function on all ranks (fmt's "{}").
struct setting {
    std::string name{};
    std::string value{};

    friend bool operator==(const setting&, const setting&) = default;
};

/// One number for all of them, names and order included; the same on every machine.
[[nodiscard]] std::uint64_t hash_of(const std::vector<setting>& settings);

/// The program that a rank runs, see proc/build_id.hpp: two builds of one program may compute
/// unlike numbers, and would train apart.
[[nodiscard]] setting build_setting();

/// What differs between two ranks, as errc::mismatch that names the settings and both values;
/// nothing when they are alike.
///   reference   -1: of no rank in particular, but of all others
[[nodiscard]] std::optional<error> difference(int rank, const std::vector<setting>& theirs,
                                              int reference, const std::vector<setting>& ours);

/// Every rank calls it with the same key (see rendezvous::exchange): returns when all settings are
/// alike.
///   errors  mismatch on every rank, about the first rank that differs from rank 0; those of
///           exchange()
void require_same(rendezvous& world, std::string_view key, const std::vector<setting>& mine);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/settings.ipp>
#endif
