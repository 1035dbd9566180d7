#include "rows.h"

namespace heddle::ops::rows {

std::vector<Row> recurrent_rows() {
  return {
      {"RnnRelu",
       "RNN",
       14,
       {{"hidden_size", 1}, {"activations", Texts{"Relu"}}},
       {f32({2, 1, 1}, {1, 2}), f32({1, 1, 1}, {3}), f32({1, 1, 1}, {10})},
       {f32({2, 1, 1, 1}, {3, 36}), f32({1, 1, 1}, {36})},
       ""},
      {"RnnReverse",
       "RNN",
       14,
       {{"hidden_size", 1}, {"activations", Texts{"Relu"}}, {"direction", text("reverse")}},
       {f32({2, 1, 1}, {1, 2}), f32({1, 1, 1}, {3}), f32({1, 1, 1}, {10})},
       {f32({2, 1, 1, 1}, {63, 6}), f32({1, 1, 1}, {63})},
       ""},
      {"RnnLengths",
       "RNN",
       14,
       {{"hidden_size", 1}, {"activations", Texts{"Affine"}}, {"activation_alpha", Reals{2}}},
       {f32({2, 2, 1}, {1, 1, 1, 1}), f32({1, 1, 1}, {1}), f32({1, 1, 1}, {1}), none(),
        i64({2}, {1, 2})},
       {f32({2, 1, 2, 1}, {2, 2, 0, 6}), f32({1, 2, 1}, {2, 6})},
       ""},
      {"LstmWidth",
       "LSTM",
       14,
       {{"hidden_size", 1}},
       {f32({1, 1, 1}, {1}), f32({1, 3, 1}, {1, 1, 1}), f32({1, 4, 1}, {1, 1, 1, 1})},
       {},
       "input 1 has shape [1,3,1], want [1,4,1]"},
      {"LstmOne",
       "LSTM",
       14,
       {{"hidden_size", 1}},
       {f32({1, 1, 1}, {0}), f32({1, 4, 1}, {1, 1, 1, 1}), f32({1, 4, 1}, {0, 0, 0, 0}), none(),
        none(), none(), f32({1, 1, 1}, {2})},
       {f32({1, 1, 1, 1}, {0.3807970780}), f32({1, 1, 1}, {0.3807970780}), f32({1, 1, 1}, {1})},
       ""},
      {"GruActivation",
       "GRU",
       14,
       {{"hidden_size", 1}, {"activations", Texts{"Swish", "Tanh"}}},
       {f32({1, 1, 1}, {1}), f32({1, 3, 1}, {1, 1, 1}), f32({1, 3, 1}, {1, 1, 1})},
       {},
       "activation 'swish' is not known"},
  };
}
INSTANTIATE_TEST_SUITE_P(Recurrent, OpRows, testing::ValuesIn(recurrent_rows()), name_of_row);

}  // namespace heddle::ops::rows
