// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/models/conv_ctc.hpp>

#include <tests/models/sharded.hpp>
#include <tests/models/trains.hpp>
#include <tests/support/error_of.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace conv_ctc_test {

using namespace skein;

const models::conv_ctc_options small{
    .waves = false, .features = 5, .width = 12, .wide = 24, .layers = 3, .letters = 4};

models::conv_ctc_options of_waves() {
    auto o = small;
    o.waves = true;
    o.features = 1;
    return o;
}

torch::Tensor numbers(std::int64_t count) { return torch::tensor({count}, torch::kLong); }

/// The probability of a text by adding up all ways to place its letters.
double probability_of(const torch::Tensor& scores_KT, const std::vector<std::int64_t>& text) {
    const auto frames = scores_KT.size(1), letters = scores_KT.size(0);
    std::int64_t ways = 1;
    for (std::int64_t t = 0; t < frames; ++t) ways *= letters;
    double sum = 0;
    for (std::int64_t way = 0; way < ways; ++way) {
        std::vector<std::int64_t> said;
        std::int64_t before = 0, rest = way;
        double log = 0;
        for (std::int64_t t = 0; t < frames; ++t, rest /= letters) {
            const auto letter = rest % letters;
            log += scores_KT[letter][t].item<double>();
            if (letter != before && letter != 0) said.push_back(letter);
            before = letter;
        }
        if (said == text) sum += std::exp(log);
    }
    return sum;
}

TEST_CASE("Wav2Letter has its parameters, its frames and its cost") {
    CHECK(models::parameter_count(models::wav2letter()) == 26'211'290);
    CHECK(models::frame_count(models::wav2letter(), 16000) == 51); // one more by an even kernel
    CHECK(models::frame_count(models::wav2letter(), 320) == 2);
    CHECK(models::frame_count(models::wav2letter(), 319) == 0);
    CHECK(models::frame_count(models::wav2letter_of_spectra(), 100) == 51);
    CHECK(models::frame_count(models::wav2letter_of_spectra(), 1) == 0);
    const double forward = models::flops_per_sample(models::wav2letter()) / 6;
    CHECK((forward > 0.9 * 26e6 * 50 && forward < 1.1 * 26e6 * 51));
}

TEST_CASE("speech becomes as many frames as are said, with torchaudio's names") {
    torch::manual_seed(1);
    for (const auto& o : {small, of_waves()}) {
        models::ConvCTC net(o);
        CHECK(models_test::count_of(*net) == models::parameter_count(o));
        const auto named = net->named_parameters();
        CHECK(named.contains(o.waves ? "acoustic_model.0.0.weight" : "acoustic_model.0.weight"));
        CHECK(named.contains(o.waves ? "acoustic_model.1.10.bias" : "acoustic_model.10.bias"));
        for (const std::int64_t places : {2, 3, 40}) {
            const auto input = torch::randn({2, o.features, places * (o.waves ? 160 : 1)});
            const torch::Tensor scores = net(input);
            CHECK(scores.sizes().vec() ==
                  std::vector<std::int64_t>{2, 4, models::frame_count(o, input.size(2))});
            CHECK(torch::allclose(scores.exp().sum(1), torch::ones({2, scores.size(2)})));
        }
        const torch::Tensor all = net(torch::randn({2, o.features, 4000}));
        all.select(1, 1).sum().backward();
        for (const auto& p : net->parameters()) CHECK(p.grad().defined());
        const auto refused = skein::test::error_of([&] { net(torch::randn({1, o.features, 1})); });
        CHECK(refused.code() == errc::usage);
        CHECK(std::string(refused.what()).find("1 places is too short") != std::string::npos);
    }
    auto none = small;
    none.letters = 1;
    CHECK(skein::test::error_of([&] { models::ConvCTC net(none); }).code() == errc::usage);
}

TEST_CASE("the loss is the probability of a text, over all ways to place its letters") {
    torch::manual_seed(2);
    const auto scores_NKT = torch::log_softmax(torch::randn({1, 4, 5}), 1);
    std::int64_t places = 1; // of the input, for five frames
    while (models::frame_count(small, places) < 5) ++places;
    for (const auto& text : {std::vector<std::int64_t>{2}, {1, 3}, {2, 2}, {3, 1, 2}}) {
        const auto wanted = -std::log(probability_of(scores_NKT[0], text)) / double(text.size());
        const auto found = models::ctc_loss(small, scores_NKT, numbers(places),
                                            torch::tensor(text, torch::kLong).unsqueeze(0),
                                            numbers(static_cast<std::int64_t>(text.size())));
        CHECK(std::fabs(found.item<double>() - wanted) < 1e-4);
    }
    const auto too_long = models::ctc_loss(small, scores_NKT, numbers(places),
                                           torch::ones({1, 4}, torch::kLong), numbers(4));
    CHECK(too_long.item<float>() == 0); // 4 equal letters need 7 frames
}

TEST_CASE("the best letters are those of the likeliest frames") {
    auto scores_NKT = torch::zeros({2, 4, 6});
    const std::vector<std::vector<std::int64_t>> frames{{0, 1, 1, 0, 1, 3}, {0, 0, 0, 0, 0, 0}};
    for (std::int64_t n = 0; n < 2; ++n)
        for (std::int64_t t = 0; t < 6; ++t)
            scores_NKT[n][frames[static_cast<std::size_t>(n)][static_cast<std::size_t>(t)]][t] = 1;
    CHECK(models::best_letters(scores_NKT) ==
          std::vector<std::vector<std::int64_t>>{{1, 1, 3}, {}});
}

TEST_CASE("it learns to spell") {
    torch::manual_seed(3);
    models::ConvCTC net(small);
    torch::optim::Adam optimizer(net->parameters(), 3e-3);
    // A tone of each letter for eight frames of the input.
    const std::vector<std::vector<std::int64_t>> texts{{1, 2, 3}, {3, 1, 3}, {2, 3, 1}};
    auto input = torch::zeros({3, 5, 24});
    auto letters = torch::zeros({3, 3}, torch::kLong);
    for (std::int64_t n = 0; n < 3; ++n)
        for (std::int64_t s = 0; s < 3; ++s) {
            const auto letter = texts[static_cast<std::size_t>(n)][static_cast<std::size_t>(s)];
            letters[n][s] = letter;
            input[n][letter].slice(0, 8 * s, 8 * s + 8).fill_(1);
        }
    const auto lengths = torch::full({3}, 24, torch::kLong),
               counts = torch::full({3}, 3, torch::kLong);
    double last = 0;
    for (int step = 0; step < 400; ++step) {
        optimizer.zero_grad();
        const auto loss = models::ctc_loss(small, net(input), lengths, letters, counts);
        loss.backward();
        optimizer.step();
        last = loss.item<double>();
        if (last < 0.02) break;
    }
    INFO("loss " << last);
    CHECK(models::best_letters(net(input)) == texts);
}

TEST_CASE("layers of speech are gathered and dropped under FSDP, with the same scores") {
    const auto waves = torch::arange(2 * 3200).cos().view({2, 1, 3200});
    models_test::check_sharded<models::ConvReLU>(
        [] { return models::ConvCTC(of_waves()); }, waves, 0.3, 1e-3,
        [](const torch::Tensor& scores) { return scores.select(1, 1).sum(); });
}

} // namespace conv_ctc_test
