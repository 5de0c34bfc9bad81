// SPDX-License-Identifier: Apache-2.0
// Norm, clipping and update of as many elements in 1,000 tensors and in 20,000: the time goes with
// the elements, not with the tensors.
//
//     optimizer        one JSON line per optimizer; SKEIN_BENCH_ELEMENTS (default 24 million)
//
// Half of the tensors are matrices, which are decayed, half vectors, which are not, in turns as in
// a transformer: the shape that breaks runs most often.

#include "bench.hpp"

#include <skein/torch/torch.hpp>
#include <skein/train/optimizer.hpp>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

namespace {

using namespace skein::train;

constexpr std::int64_t vector_size = 64;

/// A module of so many tensors with so many elements, and its optimizer.
struct subject {
    subject(std::int64_t tensors, std::int64_t elements, const optimizer_options& options) {
        const auto pairs = tensors / 2;
        const auto rows = elements / pairs / vector_size - 1;
        for (std::int64_t i = 0; i < pairs; ++i) {
            const auto name = fmt::format("{}", i);
            module.register_parameter("w" + name, torch::randn({rows, vector_size}));
            module.register_parameter("b" + name, torch::randn({vector_size}));
        }
        flat = std::make_unique<flat_store>(module);
        optimizer = std::make_unique<flat_optimizer>(options, *flat);
        flat->grads_P().normal_();
    }

    /// Nanoseconds of processor time per element.
    [[nodiscard]] double step() const {
        return bench::cpu_seconds([&] {
                   const double norm = std::sqrt(flat->own_squared_norm());
                   optimizer->step(1e-3, clip_to(norm, 1.0).scale);
               }) *
               1e9 / static_cast<double>(flat->trainable());
    }

    torch::nn::Module module;
    std::unique_ptr<flat_store> flat;
    std::unique_ptr<flat_optimizer> optimizer;
};

bool compare(const std::string& what, std::int64_t elements, const optimizer_options& options) {
    const subject few(1'000, elements, options), many(20'000, elements, options);
    const auto [one, other] =
        bench::in_turns<2>(15, {[&] { return many.step(); }, [&] { return few.step(); }});
    return bench::figure("optimizer." + what + ".20000_tensors", one.median, "ns/element")
        .against("1,000 tensors", other.median)
        .at_most(1.1)
        .print();
}

} // namespace

int main() {
    at::set_num_threads(1);
    const char* const wanted = std::getenv("SKEIN_BENCH_ELEMENTS");
    const std::int64_t elements = wanted != nullptr ? std::atoll(wanted) : 24'000'000;
    bool ok = compare("adamw", elements, skein::AdamW{});
    ok = compare("adamw_decay_vectors", elements, skein::AdamW{.decay_vectors = true}) && ok;
    ok = compare("lion", elements, skein::Lion{.weight_decay = 0.1}) && ok;
    return ok ? 0 : 1;
}
