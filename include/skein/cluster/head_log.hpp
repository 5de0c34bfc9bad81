// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file of records that survives crashes: what a head remembers between two of its starts.
//
//     skein::posix_disk disk;
//     cluster::head_log log(disk, "/var/lib/skein");
//     // what was recorded, in order; a damaged file is set aside
//     auto records = log.open();
//     auto done = log.append(std::span(&one, 1));      // durable when it returns
//     if (log.wants_replacing()) done = log.replace(all);
//
// The file is a header, then records: length, kind, mark, CRC32C, body. append() writes and syncs
// several of them at once, and replace() puts a file with others in the place of this one. So a
// crash leaves what was told to be durable, and of the last append a prefix: the rest does not fit
// its checksums and is cut off. Bytes that do not fit, with whole records behind them, are damage
// of another kind: then the file is kept as head.log.broken. A file that somebody has removed, or
// has put another one in the place of, is noticed: nothing is told to be durable that only stands
// in a file without a name.
//
// Calls block, on any one thread at a time.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace skein::cluster {

/// One entry. What kinds there are, and what their bodies mean, is up to who writes them.
struct log_record {
    std::uint16_t kind = 0;
    byte_buffer body;
};

/// What the bytes of a log say.
struct log_reading {
    std::vector<log_record> records;       ///< those before the first bytes that do not fit
    std::uint64_t whole = 0;               ///< bytes up to there
    bool is_log = false;                   ///< the bytes begin like one
    std::uint32_t version = 0;             ///< of its format
    std::optional<std::uint64_t> broken{}; ///< where it is damaged, with whole records behind it
};

/// Bounds of a log's file, and of one record.
struct log_bounds {
    std::uint64_t most_bytes = std::uint64_t{64} << 20;
    std::uint32_t most_record = std::uint32_t{1} << 20;
    /// wants_replacing() from here on, and above so much for each byte that the last replace() has
    /// written.
    std::uint64_t grown = std::uint64_t{256} << 10;
    std::uint64_t times = 3;
};

/// Reads the bytes of a log, whatever they are. Memory follows their size.
[[nodiscard]] log_reading read_log(byte_span bytes, const log_bounds& bounds = {});
/// A whole file with these records.
[[nodiscard]] byte_buffer write_log(std::span<const log_record> records);

/// The log in one folder. The disk must outlive it.
class head_log {
public:
    head_log(skein::disk& on, std::string folder, log_bounds bounds = {});
    head_log(const head_log&) = delete;
    head_log& operator=(const head_log&) = delete;
    ~head_log();

    /// Makes the folder where there is none, and reads what is there: nothing, if the log is new,
    /// or was set aside.
    ///   errors  io, permission_denied, invalid_argument (no folder): the text names path and
    ///           remedy; not_supported: a newer release has written it
    [[nodiscard]] result<std::vector<log_record>> open();
    /// Why open() has set the file aside; "" if it has not.
    [[nodiscard]] const std::string& set_aside() const noexcept { return set_aside_; }
    /// What open() has left out at the end of the file; "" if it ends with a whole record.
    [[nodiscard]] const std::string& cut_off() const noexcept { return cut_off_; }

    /// Adds records at the end. After a failure only replace() helps: what the file ends with is
    /// not known.
    ///   errors  disk_full, io, ...; aborted: an earlier one has failed; too_large: one that could
    ///           not be read again; those of look()
    [[nodiscard]] result<void> append(std::span<const log_record> records);
    /// Whether what was written stands where the next head looks for it.
    ///   errors  not_found: somebody has removed it, then replace() helps; mismatch: another file is
    ///           in its place, which replace() leaves alone
    [[nodiscard]] result<void> look() const;
    /// Puts a file with these records alone in the place of the log.
    ///   errors  as append()
    [[nodiscard]] result<void> replace(std::span<const log_record> records);
    /// The file has grown by much more than what replace() would leave, or an append has failed.
    [[nodiscard]] bool wants_replacing() const noexcept;

    /// "state/head.log"
    [[nodiscard]] std::string path() const;
    [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

private:
    result<void> put_aside(std::string why);
    result<void> keep_folder();
    [[nodiscard]] result<void> check(std::span<const log_record> records,
                                     std::uint64_t before) const;

    skein::disk& disk_;
    std::string folder_;
    log_bounds bounds_;
    std::unique_ptr<file> file_;                   ///< open at the end; made by the first append
    std::uint64_t bytes_ = 0, replaced_bytes_ = 0; ///< bytes_: after a failed replace the least
    std::uint64_t most_there_ = 0; ///< bytes_, and what a failed append may have left behind them
    bool folder_is_kept_ = false;
    bool is_sound_ = false; ///< the file ends with a whole record, as far as was heard
    std::string set_aside_, cut_off_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/head_log.ipp>
#endif
