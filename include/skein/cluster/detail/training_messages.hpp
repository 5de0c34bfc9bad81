// SPDX-License-Identifier: Apache-2.0
#pragma once
// Of trainings whose workers come and go; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_messages.hpp>

#include <cstdint>
#include <string>

namespace skein::cluster {

/// A driver has what it wanted together: the leases in that group are leases of their own from now
/// on, where they are, and the rest of its room is anybody's.
struct loosen_group {
    static constexpr std::uint16_t number = 130;
    std::uint64_t group = 0;
};

/// A tool wants another number of workers for the elastic training of a job.
struct ask_scale {
    static constexpr std::uint16_t number = 131;
    std::uint32_t version = cluster_version;
    std::string job;
    std::int32_t workers = 0;
};
struct scale_reply {
    static constexpr std::uint16_t number = 132;
    std::string said; ///< by the training, for people
};

/// The head passes it on to the driver whose workers they are.
struct scale_training {
    static constexpr std::uint16_t number = 133;
    std::int32_t workers = 0;
};
struct training_scaled {
    static constexpr std::uint16_t number = 134;
    std::string said;
};

} // namespace skein::cluster
