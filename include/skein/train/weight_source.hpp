// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights that lie on disk, whoever wrote them: names, types, shapes, and any rows of a tensor.
//
//     posix_disk here;
//     const auto from = open_weights(here, "hf:models/gpt2");
//     for (const auto& [name, t] : from->tensors()) fmt::print("{} {}\n", name, t.dtype);
//     from->read("wte.weight", first_row, rows, bytes);      // these rows, no other bytes
//
// Opening reads what says which tensors there are (manifest, index, headers) and checks all of it;
// nothing is read of a folder whose parts do not agree. Files come from strangers: lengths and
// names are bounded, and an index can name files of its own folder alone.

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/result.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/element_values.hpp>
#include <skein/train/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

/// A tensor as it lies in a source.
struct source_tensor {
    std::string dtype{}; ///< as in safetensors: F32, BF16, ...
    std::vector<std::int64_t> shape{};

    friend bool operator==(const source_tensor&, const source_tensor&) = default;
};
/// The tensors of a source by name.
using source_table = std::map<std::string, source_tensor>;

/// Characters; a longer name of a tensor is refused.
inline constexpr std::size_t max_weight_name = 1024;
/// Files that one index may name.
inline constexpr std::size_t max_weight_files = 1000;

namespace detail {

/// What save_pretrained() of Hugging Face's libraries calls its one file, and the index of several.
inline constexpr std::string_view hugging_face_file = "model.safetensors";
inline constexpr std::string_view hugging_face_index = "model.safetensors.index.json";

/// Bytes of a row of dimension 0; 0: it has no rows.
[[nodiscard]] std::uint64_t row_bytes(const source_tensor& tensor);
/// Rows that are read at once: 4 MiB, and at least one.
[[nodiscard]] std::int64_t rows_at_once(const source_tensor& tensor);
/// The file of each tensor, of the text of an index: malformed or too_large, with what is wrong.
[[nodiscard]] result<std::map<std::string, std::string>> parse_weight_index(byte_span text);

} // namespace detail

/// Named tensors of which rows can be read.
class weight_source {
public:
    weight_source(const weight_source&) = delete;
    weight_source& operator=(const weight_source&) = delete;
    virtual ~weight_source() = default;

    /// The folder or file, for messages.
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const source_table& tensors() const noexcept { return tensors_; }

    /// Reads `rows` rows of dimension 0 from `first_row` on into memory of exactly their size. A
    /// tensor of no dimensions is one row.
    ///   errors  not_found; invalid_argument for rows that the tensor has not or memory of another
    ///           size; corrupt or a disk error, with the file
    void read(const std::string& name, std::int64_t first_row, std::int64_t rows,
              mut_byte_span into) const;

protected:
    explicit weight_source(std::string path) : path_(std::move(path)) {}
    /// The rows exist and `into` has their size, which is not 0.
    virtual void read_rows(const std::string& name, const source_tensor& tensor,
                           std::int64_t first_row, std::int64_t rows, mut_byte_span into) const = 0;

    std::string path_;
    source_table tensors_; // filled by the constructor of the source
};

/// One safetensors file.
class safetensors_weights final : public weight_source {
public:
    /// Reads and checks the header. Throws: malformed, too_large or a disk error, with the file.
    safetensors_weights(disk& where, const std::string& path);

    [[nodiscard]] const string_map& metadata() const noexcept { return metadata_; }

private:
    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override;

    std::unique_ptr<file> file_;
    std::map<std::string, std::uint64_t> offsets_; // from the start of the file
    string_map metadata_;
};

/// A folder as save_pretrained of Hugging Face's libraries writes it: model.safetensors, or
/// model.safetensors.index.json with the shards that it names.
class hugging_face_weights final : public weight_source {
public:
    /// Opens every shard and compares it with the index. Throws: not_found, malformed, too_large,
    /// mismatch when index and shards have other tensors, or a disk error, with the file.
    hugging_face_weights(disk& where, const std::string& folder);

private:
    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override;
    void add_shard(disk& where, const std::string& name,
                   const std::map<std::string, std::string>& index);

    std::vector<std::unique_ptr<safetensors_weights>> shards_;
    std::map<std::string, std::size_t> shard_of_;
};

/// The weights of one of our checkpoints, under the module's own names.
class checkpoint_weights final : public weight_source {
public:
    ///   average  the averages of the weights in place of the weights; not_found when there are
    ///            none
    explicit checkpoint_weights(loaded_checkpoint from, bool average = false);

    [[nodiscard]] const loaded_checkpoint& checkpoint() const noexcept { return from_; }

private:
    [[nodiscard]] std::string saved_name(const std::string& name) const;
    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override;

    loaded_checkpoint from_;
    bool average_;
};

/// All that one of our checkpoints has, the optimizer's state too, by the names in its manifest.
class checkpoint_tensors final : public weight_source {
public:
    explicit checkpoint_tensors(loaded_checkpoint from);

private:
    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override;

    loaded_checkpoint from_;
};

/// Opens the newest whole checkpoint of a run's folder or of its folder of checkpoints, or the
/// checkpoint itself; every byte is verified, nothing is changed on disk. Damaged newer ones are
/// passed over with a warning in the log.
///   passed_over  when given, gets a line per checkpoint that was
///   verify       false: sizes and headers are looked at, and no other bytes
///   errors  not_found, or the newest one's corrupt or malformed when none is whole
[[nodiscard]] loaded_checkpoint open_checkpoint(disk& where, const std::string& path,
                                                std::vector<std::string>* passed_over = nullptr,
                                                bool verify = true);

/// Which weights of a source are wanted.
struct source_options {
    bool average = false; ///< of our checkpoints: the averages in place of the weights
    std::vector<std::string>* passed_over = nullptr; ///< see open_checkpoint
};

/// What lies at a path.
enum class weights_kind : std::uint8_t {
    checkpoint,   ///< a run's folder, its folder of checkpoints, or one of them
    hugging_face, ///< a folder
    file,         ///< of safetensors
};
/// A path without what stands before it.
struct weights_place {
    weights_kind kind = weights_kind::checkpoint;
    std::string path{};
};
/// "hf:DIR" is a folder of Hugging Face's; of a plain path a file is taken for safetensors, a folder
/// with model.safetensors or its index for Hugging Face's, any other folder for a run or a
/// checkpoint of ours. What is not there is a checkpoint that opening will not find.
[[nodiscard]] weights_place find_weights(disk& where, const std::string& from);

/// Opens what find_weights() says that there is.
[[nodiscard]] std::unique_ptr<weight_source> open_weights(disk& where, const std::string& from,
                                                          source_options options = {});

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weight_source.ipp>
#endif
