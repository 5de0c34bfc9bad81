// SPDX-License-Identifier: Apache-2.0
#pragma once
// What attempts of jobs leave behind: sent by nodes, kept by the head, fetched by tools. See
// cluster/run_store.hpp.
//
//     node -> head    offer_set answered by set_wanted, put_run_piece by piece_taken,
//                     commit_set by set_committed
//     tool -> head    ask_sets answered by set_list, ask_set by set_found,
//                     ask_run_piece by blob_piece

#include <skein/core/config.hpp>
#include <skein/cluster/detail/job_messages.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/core/bytes.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// In the environment of a job: which files of its folder are results, a pattern a line.
inline constexpr const char* results_variable = "SKEIN_RESULTS";

/// Files that became whole together, as an attempt's results at its end.
struct stored_set {
    std::string name;          ///< "attempt-2"; of one job no two have the same
    std::string node;          ///< that has sent it
    std::uint32_t attempt = 0; ///< of which they are
    std::int64_t when = 0;     ///< it was committed, in milliseconds since 1970
    std::string id;            ///< of its manifest; empty: none of its files is kept
    std::uint64_t files = 0, bytes = 0;
    std::string trouble; ///< why some files are not in it, or all; else empty
};

/// A node is to send files of an attempt that it runs: which of them are not there?
struct offer_set {
    static constexpr std::uint16_t number = 100;
    lease_name lease;
    byte_buffer manifest; ///< an encoded package_manifest
};
/// The digests of those.
struct set_wanted {
    static constexpr std::uint16_t number = 101;
    std::string id;
    std::vector<std::string> missing;
};
/// A piece of a file, whose name over this link is a number that the sender has chosen. Pieces come
/// in order, several may be under way.
struct put_run_piece {
    static constexpr std::uint16_t number = 102;
    std::uint64_t file = 0;
    std::uint64_t size = 0, offset = 0; ///< of the whole file; of this piece in it
    byte_buffer bytes;
    bool is_last = false;
    std::string digest; ///< of the whole file, with its last piece
};
/// It is kept.
struct piece_taken {
    static constexpr std::uint16_t number = 103;
};
/// All files of a set have come.
struct commit_set {
    static constexpr std::uint16_t number = 104;
    lease_name lease;
    stored_set what; ///< node, attempt and when: as the head knows them
    /// Not empty: of sets whose names begin so, only these and the two newest are kept.
    std::string run;
    std::vector<std::string> keeps{};
};
/// It is on the head's disk.
struct set_committed {
    static constexpr std::uint16_t number = 105;
};
/// What is kept of a job?
struct ask_sets {
    static constexpr std::uint16_t number = 106;
    std::uint32_t version = cluster_version;
    std::string job;
};
/// All of it, the newest last.
struct set_list {
    static constexpr std::uint16_t number = 107;
    job_info now;
    std::vector<stored_set> sets;
};
/// Which files are in a set?
struct ask_set {
    static constexpr std::uint16_t number = 108;
    std::string job, id;
};
/// These.
struct set_found {
    static constexpr std::uint16_t number = 109;
    byte_buffer manifest;
};
/// A piece of a file of a set.
struct ask_run_piece {
    static constexpr std::uint16_t number = 110;
    std::string job, id;
    std::uint32_t entry = 0; ///< of its manifest, from 0 on
    std::uint64_t offset = 0;
};

/// A piece of a file that a job is to bring, as put_run_piece.
struct put_package_piece {
    static constexpr std::uint16_t number = 111;
    std::uint64_t file = 0;
    std::uint64_t size = 0, offset = 0;
    byte_buffer bytes;
    bool is_last = false;
    std::string digest;
};
/// Of which of these sizes are there files? One of another size is not there.
struct ask_sizes {
    static constexpr std::uint16_t number = 112;
    std::uint32_t version = cluster_version;
    std::vector<std::uint64_t> sizes;
};
/// Of these.
struct sizes_found {
    static constexpr std::uint16_t number = 113;
    std::vector<std::uint64_t> sizes;
};

} // namespace skein::cluster
