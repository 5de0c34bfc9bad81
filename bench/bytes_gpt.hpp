// SPDX-License-Identifier: Apache-2.0
#pragma once
// The GPT of example 110 on bytes that their number makes: what figures of memory and of saves train.

#include "../examples/110_gpt_ddp/gpt.hpp"

#include <skein/train/wrap.hpp>

#include <cstdint>
#include <span>

namespace bench {

using by_block = skein::auto_wrap<gpt::Block>;

struct byte_batch {
    torch::Tensor ids_BT;
};
struct some_bytes {
    std::uint64_t count;
    [[nodiscard]] std::uint64_t size() const noexcept { return count; }
    [[nodiscard]] byte_batch batch(std::span<const std::uint64_t> ids) const {
        const auto rows = static_cast<std::int64_t>(ids.size());
        return {torch::arange(rows * 33).remainder(251).view({rows, 33})};
    }
};
inline at::Tensor loss_of(gpt::GPT& model, const byte_batch& b) {
    return gpt::next_byte_loss(model, b.ids_BT.slice(1, 0, 32), b.ids_BT.slice(1, 1, 33));
}

} // namespace bench
