// SPDX-License-Identifier: Apache-2.0
#pragma once
// spill: objects in files, when the memory for them is full. Each one is a file without a name, which
// is gone with its process, however that ends.
//
//     auto on = objects::open_spill_folder("/var/tmp");        // refuses what is memory itself
//     objects::spill files(std::move(on));
//     auto writing = files.write(number, memory, where);       // on a thread
//     auto written = co_await writing;                         // disk_full at 95 % of the volume
//     auto reading = files.read(number, memory, other_place);  // checked
//     files.drop(number);                                      // its room is there again
//
// A checksum is kept here for each MiB: what a disk gives back wrong is an error, and never bytes.

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_book.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace skein::objects {

/// Where files of objects are. Its functions are called on threads, one at a time.
class spill_volume {
public:
    virtual ~spill_volume() = default;
    /// Which one, for people: "/var/tmp (ext4)".
    [[nodiscard]] virtual const std::string& name() const noexcept = 0;
    /// A file that nobody else finds and that ends with its object.
    [[nodiscard]] virtual result<std::unique_ptr<file>> make() = 0;
    struct room {
        std::uint64_t bytes = 0, free = 0;
    };
    [[nodiscard]] virtual result<room> left() = 0;
};

/// A folder on a file system of this host.
///   errors  usage: there is none, nothing can be written there, or it is memory (tmpfs)
[[nodiscard]] std::unique_ptr<spill_volume> open_spill_folder(const std::string& path);
/// The same by what the environment says: SKEIN_SPILL (a folder; "0": null), else $TMPDIR and
/// /var/tmp; null if neither of these two is fit, which a line says.
///   errors  usage: SKEIN_SPILL is not fit
[[nodiscard]] std::unique_ptr<spill_volume> default_spill_volume();

/// What files have and have had.
struct spill_usage {
    std::uint64_t bytes = 0, written = 0, read = 0;
};

/// On the loop of its store. Work on files is on a thread; one piece of work at a time waits for the
/// disk.
class spill {
public:
    explicit spill(std::unique_ptr<spill_volume> on);
    spill(const spill&) = delete;
    spill& operator=(const spill&) = delete;
    /// close() first.
    ~spill();

    /// Writes the bytes of an object, which must stay until the task has ended.
    ///   errors  disk_full: also of a volume that is full to 95 %; io and others of the disk; all
    ///           name the volume
    [[nodiscard]] task<result<void>> write(object_number which, arena memory, extent from);
    /// Reads them back, all of them.
    ///   errors  corrupt: the disk gives other bytes than it got; io and others of the disk; all
    ///           name the object and the volume
    [[nodiscard]] task<result<void>> read(object_number which, arena memory, extent to);
    /// One piece of them, of file_piece bytes.
    [[nodiscard]] task<result<byte_buffer>> read_piece(object_number which, std::uint64_t piece);
    /// Its file goes, at once or when it has been read.
    void drop(object_number which);

    [[nodiscard]] const spill_usage& usage() const noexcept { return usage_; }
    [[nodiscard]] const std::string& volume() const noexcept;
    /// Waits for what is being dropped. Never throws.
    [[nodiscard]] task<void> close();

private:
    struct stored;
    struct shared;
    std::shared_ptr<shared> held_; ///< for threads, too
    std::unordered_map<object_number, std::shared_ptr<stored>> files_;
    spill_usage usage_;
    scope tasks_;
};

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/spill.ipp>
#endif
