// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything a run needs to go on as if it had never stopped, to and from a checkpoint.
//
// Tensors are saved under the module's own names ("model.wte", "optim.exp_avg.wte"), not as flat
// buffers, and a rank of a sharded run saves the rows it owns: any strategy with any number of
// workers, and any other reader of safetensors, can load them. The rest is a small JSON object:
// sampler position, optimizer steps, seed. What lies on a device is saved and loaded through memory
// of the host, bit for bit: a run goes on there or on the CPU. Dropout needs no saved state: every
// micro-batch seeds the generator with (seed, step, its number in the global batch).

#include <skein/core/bytes.hpp>
#include <skein/torch/tensor.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/sampler.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace skein::train {

class context;

/// The name of a tensor's type in the safetensors format; errc::not_supported for an exotic one.
[[nodiscard]] std::string safetensors_dtype(const at::Tensor& tensor);

/// The bytes of a contiguous CPU tensor.
[[nodiscard]] mut_byte_span bytes_of(const at::Tensor& tensor);

/// Seeds this process's default generator for one micro-batch, numbered over all ranks of a step. N
/// ranks so draw what one process draws with N micro-batches per step.
void seed_step(std::uint64_t seed, std::uint64_t step, int micro_batch);

/// The parts of a run that a checkpoint covers; refers to objects of the trainer.
class training_state {
public:
    training_state(flat_store& store, flat_optimizer& optimizer, sampler& order)
        : training_state(store, optimizer, &order) {}
    ///   order  null: the data is a stream, whose place is in what `extra` of save() says
    training_state(flat_store& store, flat_optimizer& optimizer, sampler* order);

    /// Tells a model or optimizer with other tensors.
    [[nodiscard]] std::string config_hash() const;

    /// What to save after `step` finished steps. The views stay valid until the next step; of what
    /// is on a device a snapshot has to be taken until then. Throws, by name, for what nobody could
    /// read back: a tensor whose elements share memory, or of another shape or type than when this
    /// was made.
    ///   more   numbers that go into checkpoint_state::extra besides its own
    ///   extra  likewise: the text of a JSON object
    [[nodiscard]] checkpoint_state save(std::uint64_t step, std::uint64_t seed,
                                        const std::map<std::string, double>& more = {},
                                        const std::string& extra = "{}");

    /// Takes over what this rank owns; strategy::publish() gives it to the others. Throws
    /// errc::mismatch, naming what differs, before it changes anything that a shape check can find.
    void restore(const loaded_checkpoint& from);

    /// The same from the memory of other ranks, without what a file is for: every rank has all the
    /// values (no shards). Collective; ranks whose `has_state` is true give equal parts, the others
    /// take them, and all compare a checksum of the whole.
    ///   result  bytes that this rank took
    ///   errors  mismatch on every rank when the copies differ; those of the transport, after which
    ///           a rank that took has neither its old values nor the new ones
    std::uint64_t copy(const context& ctx, const std::vector<bool>& has_state);
    /// checkpoint_state::extra of another rank: the place in the data and the optimizer's counts.
    ///   where  whose it is, for messages
    void adopt(const std::string& extra, const std::string& where);

private:
    /// A tensor of the module or the optimizer, and the rows of it that this rank owns.
    struct owned_tensor {
        std::string name;
        std::vector<std::int64_t> shape; ///< of the whole
        at::Tensor rows;                 ///< flat, or of the whole shape
        std::int64_t first_row = 0, count = 0;
        bool everywhere = true;
    };

    void require_readable() const;
    void restore_place(const std::string& extra, const std::string& where);
    void restore_left_out(const std::string& text);
    /// Every tensor to save, in one order on all ranks.
    [[nodiscard]] std::vector<owned_tensor> tensors() const;

    flat_store* store_;
    flat_optimizer* optimizer_;
    sampler* order_;
    std::vector<at::Tensor> held_;
    std::vector<std::string> fixed_; // types and shapes of the store's fixed()
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/training_state.ipp>
#endif
