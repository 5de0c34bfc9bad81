// SPDX-License-Identifier: Apache-2.0
#pragma once
// A disk in memory that forgets like a real one: at a crash, what was not synced is lost, kept, or
// torn.
//
//     sim::disk disk(loop.random(), {.capacity = 1 << 20});
//     disk.replace("run/manifest.json", bytes);
//     // power loss: open files are gone, the random source decides
//     disk.crash();
//     // or: a copy, as the power loss leaves it
//     auto after = disk.crash(sim::crash_mode::only_synced);
//     // the fourth change from now on fails
//     disk.fail_once(3, errc::disk_full);
//
// Content is durable after file::sync, names (creation, rename, removal) after sync_dir of their
// folder. Renames are atomic. Unsynced writes survive a crash whole, in part, as zeros, or not at
// all, each on its own; unsynced changes of names in their order or out of it.

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/random.hpp>
#include <skein/sim/faults.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace skein::sim {

/// Room and fault rates of a simulated disk.
struct disk_options {
    std::uint64_t capacity = UINT64_MAX;
    double io_error = 0; ///< of calls that read, write or sync
};

/// What a crash leaves of what was not synced.
enum class crash_mode : std::uint8_t {
    all_written, ///< everything
    only_synced, ///< nothing
    /// drawn: names in their order or out of it, each write whole, torn, as zeros or not at all
    mixed,
};

/// One machine's disk, for any number of threads. A random source that is given must outlive it.
class disk final : public skein::disk {
public:
    explicit disk(random_source& random, disk_options options = {}, fault_counts* counts = nullptr);
    explicit disk(disk_options options = {});
    ~disk() override;

    /// Power loss: open files fail from now on with errc::closed, what was not synced is drawn. The
    /// machine comes back with its power on.
    void crash();
    /// The disk as it may look after a power loss now; this one stays as it is.
    [[nodiscard]] std::unique_ptr<disk> crash(crash_mode mode, std::uint64_t seed = 0) const;

    /// Operations that change something so far.
    [[nodiscard]] std::uint64_t changes() const;
    /// The power goes after so many more changes: the next one and all later ones fail.
    void power_off_after(std::uint64_t changes);
    void power_on() { power_off_after(UINT64_MAX); }
    /// Only the change number n from now on (from 0) fails.
    void fail_once(std::uint64_t n, errc code);
    void set_capacity(std::uint64_t bytes);
    /// As a system that mounts it anew after an error: whatever would change something is refused.
    void set_read_only(bool on);
    /// The content of a file, for tests that damage it. Throws not_found.
    [[nodiscard]] byte_buffer& content(const std::string& path);

    [[nodiscard]] disk_options& options() noexcept { return options_; }
    /// Flips one bit of a file's content at rest; false if there is no such byte.
    bool flip_bit(const std::string& path, std::uint64_t bit);

    result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) override;
    result<void> rename(const std::string& from, const std::string& to) override;
    result<void> sync_dir(const std::string& path) override;
    result<std::vector<dir_entry>> list(const std::string& path) override;
    result<void> remove(const std::string& path) override;
    result<void> make_dirs(const std::string& path) override;
    result<std::uint64_t> free_space(const std::string&) override;
    result<dir_entry> status(const std::string& path) override;

private:
    struct change {
        std::uint64_t offset = 0;
        byte_buffer bytes;
        bool is_truncate = false; // to `offset` bytes
    };
    struct inode {
        byte_buffer now, durable;
        std::vector<change> unsynced;
    };
    using inode_ptr = std::shared_ptr<inode>;
    /// A change of names: `path` becomes target (null: is removed); a rename removes `from` as
    /// well.
    struct name_change {
        std::string path, from;
        inode_ptr target;
        bool is_folder = false;
    };
    /// What becomes durable at once, by a sync of one of these folders: one change of a name, or a
    /// folder that moves with all that is durable in it.
    struct step {
        name_change name;
        std::string folder_from, folder_to; // of a folder that moves
        std::set<std::string> parents;
    };
    struct names {
        std::map<std::string, inode_ptr> files;
        std::set<std::string> folders{".", "/"};
        void apply(const step& s);
        void move_folder(const std::string& from, const std::string& to);
    };

    class handle;

    static std::string clean(const std::string& path);
    static void apply(byte_buffer& to, const change& c, std::size_t part);
    static error missing(const std::string& verb, const std::string& path);
    [[nodiscard]] bool io_fault();
    void count(fault f);
    [[nodiscard]] std::optional<error> begin_change(const std::string& verb,
                                                    const std::string& path);
    void change_names(name_change c);
    [[nodiscard]] std::uint64_t used_bytes() const;
    [[nodiscard]] bool has_entries(const std::string& folder) const;
    result<void> rename_folder(const std::string& from, const std::string& to);
    result<void> write(const std::string& path, inode& node, std::uint64_t offset, byte_span bytes);
    void settle(crash_mode mode, random_source& random);
    void settle_names(crash_mode mode, random_source& random);
    void settle_write(inode& node, const change& c, random_source& random);

    mutable std::recursive_mutex mutex_; // guards all below, and the content of the files
    seeded_random own_{0};
    random_source& random_;
    disk_options options_;
    fault_counts* counts_ = nullptr;
    names now_, durable_;
    std::vector<step> journal_; // changes of names that are not durable, in order
    std::uint64_t life_ = 0;    // counts crashes: handles of an earlier life are dead
    std::uint64_t changes_ = 0, power_ = UINT64_MAX, failing_ = UINT64_MAX;
    errc failing_code_ = errc::io;
    bool read_only_ = false;
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/disk.ipp>
#include <skein/sim/detail/disk_crash.ipp>
#endif
