// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints that are either whole or not there, for any number of writers and readers.
//
//     <dir>/step-00000120/shard-0-of-2.safetensors     each rank writes its share: tensors, or rows
//                                                      of them
//                         shard-1-of-2.safetensors
//                         manifest.json                 last: sizes, a CRC-32C per chunk, what is
//                                                       where
//
// A save writes into step-N.part-*, syncs every file, writes the manifest, syncs the folder,
// renames it to step-N and syncs the parent: a crash at any point leaves the new checkpoint or the
// one before it. Loading verifies every byte first; a broken checkpoint is named, renamed to
// .broken and passed over for the one before it.
//
//     checkpointer saver(disk, "runs/gpt/checkpoints", {.keep_last = 2}, world);
//     saver.save(state);                              // every rank calls it
//     if (auto found = saver.load_latest()) found->read("model.wte", bytes_of_wte);

#include <skein/core/disk.hpp>
#include <skein/train/manifest.hpp>
#include <skein/train/safetensors.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// All-gather of small blobs in rank order; throws when a rank is lost.
using exchange_function = std::function<std::vector<byte_buffer>(byte_span mine)>;

/// Who takes part in saving and loading. The default is a program alone.
struct checkpoint_world {
    int rank = 0;
    int size = 1;
    exchange_function exchange{}; ///< needed when size > 1; collective, called in the same order
};

/// Which checkpoints are kept, and how they are checked.
struct checkpoint_options {
    std::size_t keep_last = 2;       ///< newest checkpoints kept, at least 1
    std::size_t keep_best = 0;       ///< besides those, the best by `metric`
    std::string metric = "val_loss"; ///< name in checkpoint_state::metrics
    bool lower_is_better = true;
    std::uint64_t keep_every = 0; ///< besides those, the ones whose step is a multiple; 0: none
    /// Bytes that all of those may take together. What is too much goes: the oldest of keep_every
    /// first, then the oldest of keep_last, then the worst of keep_best; the newest never. 0: any.
    std::uint64_t keep_bytes = 0;
    std::size_t chunk_bytes = 1u << 20;             ///< bytes covered by one checksum
    std::function<void(const std::string&)> warn{}; ///< default: a warning in the log
    /// Asked before each block of a shard is written, on the thread that saves: true ends the save
    /// with errc::aborted. Default: never.
    std::function<bool()> is_given_up{};
};

/// A tensor to save, and what this rank has of it: all, or a run of rows along dimension 0. A
/// tensor of no dimensions is one row.
struct tensor_part {
    static constexpr std::int64_t whole = -1; ///< as `rows`: all of them

    std::string name{};
    std::string dtype{};               ///< as in safetensors: F32, BF16, ...
    std::vector<std::int64_t> shape{}; ///< of the whole tensor
    byte_span bytes{};                 ///< of the rows below
    std::int64_t first_row = 0;
    std::int64_t rows = whole;
    /// True: every rank has these bytes, all rows; one of them writes them. False: each rank writes
    /// its own rows; together those of all ranks are the tensor, each row once. A rank without
    /// rows, or whose rows another rank writes, gives rows = 0.
    bool everywhere = true;
    /// Where the host cannot read `bytes`, as on a device: copies them into its memory; `bytes` says
    /// only how many. A checkpointer refuses such a tensor: save a snapshot, which calls this. None:
    /// the host reads `bytes`.
    std::function<void(mut_byte_span)> fetch{};
};

/// What to save. Every rank gives the same list of tensors (names, types, shapes, `everywhere`) and
/// writes only its share. `step` is the number of finished optimizer steps.
struct checkpoint_state {
    std::uint64_t step = 0;
    std::vector<tensor_part> tensors{}; ///< bytes must stay unchanged during save()
    /// Sampler position, RNG, schedule...: the text of one JSON object; rank 0's is kept.
    std::string extra = "{}";
    std::map<std::string, double> metrics{}; ///< for keep_best and for people; rank 0's is kept
    std::string config_hash{}; ///< tells a resume with another model; rank 0's is kept
};

/// What a finished save tells.
struct saved_checkpoint {
    std::uint64_t step = 0;
    std::string path;
    std::uint64_t bytes = 0; ///< all shards
    double seconds = 0.0;
    /// False: it is whole, but the disk refused to make its name last; a power failure may bring
    /// back the checkpoint before it, which is kept. Told through options.warn, too.
    bool durable = true;
};

/// A verified checkpoint, open for reading on this rank.
class loaded_checkpoint {
public:
    [[nodiscard]] std::uint64_t step() const noexcept { return manifest_.step; }
    [[nodiscard]] const checkpoint_manifest& manifest() const noexcept { return manifest_; }
    [[nodiscard]] const std::string& extra() const noexcept { return manifest_.extra; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    /// All tensors by name: type and shape of the whole, and which shard has which rows.
    [[nodiscard]] const tensor_table& tensors() const noexcept { return manifest_.tensors; }
    [[nodiscard]] bool contains(const std::string& name) const {
        return manifest_.tensors.contains(name);
    }

    /// Reads `rows` rows from `first_row` on into memory of exactly their size, from however many
    /// shards they lie in, and no other bytes. Type and shape must be the whole tensor's.
    ///   errors  not_found; mismatch, with both sides: "saved as F32 [50, 64], the model has F32
    ///           [50, 128]"; invalid_argument for rows that the tensor has not; corrupt or a disk
    ///           error, with the file
    void read(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              std::int64_t first_row, std::int64_t rows, mut_byte_span into) const;
    /// All rows.
    void read(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              mut_byte_span into) const;
    /// All rows, of whichever type and shape, into memory of exactly their size.
    void read(const std::string& name, mut_byte_span into) const;
    [[nodiscard]] byte_buffer read(const std::string& name) const;

private:
    friend class checkpointer;
    [[nodiscard]] const tensor_entry& entry(const std::string& name) const;
    void read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                   mut_byte_span into) const;

    std::string path_;
    checkpoint_manifest manifest_;
    std::map<std::string, std::vector<std::uint64_t>> offsets_; // of each part in its shard
    std::vector<std::unique_ptr<file>> shards_;
};

namespace detail {
struct verify_share;
struct open_failure;
struct checkpoint_listing;
/// The rank that writes each tensor that is everywhere: largest first, always to the rank with the
/// fewest bytes so far; -1 for the others. A pure function of names and sizes, so that nothing has
/// to be gathered.
[[nodiscard]] std::vector<int> deal_tensors(std::span<const tensor_part> tensors, int world_size);
} // namespace detail

/// Saves and loads the checkpoints of one run. All members are collective over the world: every
/// rank calls them in the same order, and all ranks see the same outcome.
class checkpointer {
public:
    /// dir: "<run>/checkpoints"; created by the first save. The disk must outlive this.
    checkpointer(disk& where, std::string dir, checkpoint_options options = {},
                 checkpoint_world world = {});

    /// Blocks until the checkpoint is durable or has failed; one that is whole but whose name the
    /// disk would not sync is told through options.warn, and the older ones stay. On failure throws
    /// the first failing rank's error on every rank (disk_full, io, permission_denied, mismatch,
    /// invalid_argument with the tensor and the rows that no rank or two ranks have), the
    /// unfinished folder is gone and older checkpoints are untouched. Older ones are removed only
    /// after success.
    saved_checkpoint save(const checkpoint_state& state);

    /// The newest checkpoint that verifies, the same on every rank, or nothing when there is none.
    /// Every byte is read and checked, each rank a share of the chunks. Broken ones before a whole
    /// one are reported through rank 0's options.warn and renamed to .broken.
    ///   errors  not_found when there are checkpoints and none is whole: nothing is changed then; a
    ///           disk error when the folder cannot be read, or by one rank alone
    [[nodiscard]] std::optional<loaded_checkpoint> load_latest();

    /// Steps that have a committed checkpoint (not verified), oldest first. Not collective.
    [[nodiscard]] std::vector<std::uint64_t> steps() const;

    /// The folder of a step's checkpoint, whether it is there or not.
    [[nodiscard]] std::string step_path(std::uint64_t step) const;

    /// Verifies one checkpoint folder, every byte of it: errc::corrupt, malformed or not_found with
    /// file and reason. Not collective.
    [[nodiscard]] static result<loaded_checkpoint> open(disk& where, const std::string& path,
                                                        bool verify_bytes = true);

    [[nodiscard]] const std::string& dir() const noexcept { return dir_; }

private:
    [[nodiscard]] result<shard_entry> write_shard(const checkpoint_state&,
                                                  const std::string& folder) const;
    /// True: the new name is durable, too.
    [[nodiscard]] result<bool> commit(const checkpoint_state&, const std::string& part,
                                      std::vector<shard_entry> shards) const;
    [[nodiscard]] result<bool> put_in_place(std::uint64_t step, const std::string& part) const;
    [[nodiscard]] result<tensor_table> tabulate(const checkpoint_state&, const std::string& part,
                                                const std::vector<shard_entry>& shards) const;
    [[nodiscard]] std::vector<shard_entry> write_all(const checkpoint_state&, std::string& part);
    [[nodiscard]] result<std::string> begin_part(std::uint64_t step) const;
    void clean_up() const;
    void retire() const;
    [[nodiscard]] std::vector<std::uint64_t> wanted(const std::vector<std::uint64_t>& all) const;
    [[nodiscard]] std::vector<std::uint64_t> best_of(const std::vector<std::uint64_t>& all) const;
    [[nodiscard]] std::uint64_t bytes_of(std::uint64_t step) const;
    void warn(const std::string& line) const;
    [[nodiscard]] static std::optional<detail::open_failure> open_share(disk& where,
                                                                        const std::string& path,
                                                                        const detail::verify_share&,
                                                                        loaded_checkpoint& out);
    [[nodiscard]] detail::checkpoint_listing list_for_all() const;
    [[nodiscard]] std::optional<error> open_together(std::uint64_t step, loaded_checkpoint&) const;
    void set_aside(std::uint64_t step, const error& why, std::uint64_t next) const;

    disk& disk_;
    std::string dir_;
    checkpoint_options options_;
    checkpoint_world world_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/checkpoint.ipp>
#endif
