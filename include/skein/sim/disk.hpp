// SPDX-License-Identifier: Apache-2.0
#pragma once
// A disk in memory that forgets like a real one: at a crash, what was not synced is lost, kept, or torn.
//
//     sim::disk disk(loop.random(), {.capacity = 1 << 20});
//     disk.replace("run/manifest.json", bytes);
//     disk.crash();                       // power loss: open files are gone, the random source decides
//
// Content is durable after file::sync, names (creation, rename, removal) after sync_dir of their folder.
// Renames are atomic. Unsynced writes survive a crash whole, in part, or not at all, each on its own.

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/random.hpp>
#include <skein/sim/faults.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace skein::sim {

/// Room and fault rates of a simulated disk.
struct disk_options {
    std::uint64_t capacity = std::uint64_t{1} << 40;
    double io_error = 0; ///< of calls that read, write or sync
};

/// One machine's disk. Single-threaded; the random source must outlive it.
class disk final : public skein::disk {
public:
    explicit disk(random_source& random, disk_options options = {}, fault_counts* counts = nullptr);
    ~disk() override;

    /// Power loss: open files fail from now on with errc::closed, what was not synced is drawn.
    void crash();

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
    /// A change of names: `path` becomes target (null: is removed); a rename removes `from` as well.
    struct name_change {
        std::string path, from;
        inode_ptr target;
        bool is_folder = false;
    };
    /// What becomes durable at once, by a sync of one of these folders.
    struct step {
        std::vector<name_change> parts;
        std::set<std::string> parents;
    };
    struct names {
        std::map<std::string, inode_ptr> files;
        std::set<std::string> folders{".", "/"};
        void apply(const name_change& c);
    };

    class handle;

    static std::string clean(const std::string& path);
    static void apply(byte_buffer& to, const change& c, std::size_t part);
    static error missing(const std::string& path);
    [[nodiscard]] bool io_fault();
    void count(fault f) {
        if (counts_ != nullptr) counts_->add(f);
    }
    void change_names(name_change c);
    [[nodiscard]] std::uint64_t used_bytes() const;
    result<void> write(const std::string& path, inode& node, std::uint64_t offset, byte_span bytes);

    random_source& random_;
    disk_options options_;
    fault_counts* counts_;
    names now_, durable_;
    std::vector<step> journal_; // changes of names that are not durable, in order
    std::uint64_t life_ = 0;    // counts crashes: handles of an earlier life are dead
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/disk.ipp>
#endif
