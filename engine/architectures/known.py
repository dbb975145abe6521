"""The architectures that have been tried: what runs each, or why it is refused.

`tests/parity/test_architectures.py` builds a small model of each row and proves what the row says.
`continuo models` prints the table, and evidence/models.md has it.
"""

from typing import Literal, NamedTuple

Way = Literal["C", "torch", "transformers", "refused"]
"""The fastest code that runs an architecture:

    C               our decoder, a whole step in C on a CPU, torch on a GPU
    torch           our decoder, in torch
    transformers    transformers' own module, with our paged attention
    refused         an error at load that names the architecture and the cause
"""


class KnownArchitecture(NamedTuple):
    name: str
    """The architecture, as config.json calls it."""
    models: str
    """Models that people know it by."""
    way: Way
    reason: str = ""
    """Why it is refused: a clause, such as "it has an encoder"."""


_RECURRENT = "it has recurrent layers of a kind that is not supported"
_NO_ATTENTION = "it has no layer with attention"
_SPARSE = "it has layers with sparse attention"
_REPEATED = "it computes attention several times in a layer"
_BIAS = "its attention adds a bias by position"
_FIXED = "its attention cannot be replaced"

KNOWN_ARCHITECTURES = (
    KnownArchitecture("LlamaForCausalLM", "Llama 2, 3.x", "C"),
    KnownArchitecture("MistralForCausalLM", "Mistral 7B, Nemo", "C"),
    KnownArchitecture("Qwen2ForCausalLM", "Qwen 2, 2.5", "C"),
    KnownArchitecture("Qwen3ForCausalLM", "Qwen 3 (dense)", "C"),
    KnownArchitecture("SmolLM3ForCausalLM", "SmolLM 3", "C"),
    KnownArchitecture("Gemma2ForCausalLM", "Gemma 2", "C"),
    KnownArchitecture("Gemma3ForCausalLM", "Gemma 3 1B", "C"),
    KnownArchitecture("Gemma3ForConditionalGeneration", "Gemma 3 4B to 27B", "C"),
    KnownArchitecture("Qwen3MoeForCausalLM", "Qwen 3 MoE", "C"),
    KnownArchitecture("MixtralForCausalLM", "Mixtral", "C"),
    KnownArchitecture("GptOssForCausalLM", "gpt-oss 20B, 120B", "C"),
    KnownArchitecture("Phi3ForCausalLM", "Phi 3, 3.5, 4", "C"),
    KnownArchitecture("Mistral3ForConditionalGeneration", "Mistral Small 3.x", "C"),
    KnownArchitecture("Qwen3_5ForCausalLM", "Qwen 3.5 (text)", "C"),
    KnownArchitecture("Qwen3_5ForConditionalGeneration", "Qwen 3.5 (dense)", "C"),
    KnownArchitecture("Qwen3_5MoeForCausalLM", "Qwen 3.5 MoE (text)", "C"),
    KnownArchitecture("Qwen3_5MoeForConditionalGeneration", "Qwen 3.5 MoE, 3.6 35B-A3B", "C"),
    KnownArchitecture("Qwen3NextForCausalLM", "Qwen 3 Next", "C"),
    KnownArchitecture("Lfm2ForCausalLM", "LFM 2, 2.5", "C"),
    KnownArchitecture("Lfm2MoeForCausalLM", "LFM 2 MoE", "torch"),
    KnownArchitecture("GraniteMoeHybridForCausalLM", "Granite 4", "torch"),
    KnownArchitecture("NemotronHForCausalLM", "Nemotron-H, Nemotron Nano 2, 3 Nano", "torch"),
    KnownArchitecture("FalconH1ForCausalLM", "Falcon-H1", "torch"),
    KnownArchitecture("BambaForCausalLM", "Bamba", "torch"),
    KnownArchitecture("Mamba2ForCausalLM", "Mamba 2, Codestral Mamba", "torch"),
    KnownArchitecture("OlmoHybridForCausalLM", "OLMo Hybrid", "torch"),
    KnownArchitecture("GraniteForCausalLM", "Granite 3", "C"),
    KnownArchitecture("GraniteMoeForCausalLM", "Granite 3 MoE", "C"),
    KnownArchitecture("MinistralForCausalLM", "Ministral 8B", "C"),
    KnownArchitecture("Ministral3ForCausalLM", "Ministral 3", "transformers"),
    KnownArchitecture("GemmaForCausalLM", "Gemma", "C"),
    KnownArchitecture("Gemma3nForCausalLM", "Gemma 3n", "transformers"),
    KnownArchitecture("Gemma4ForCausalLM", "Gemma 4 (text)", "torch"),
    KnownArchitecture("Gemma4ForConditionalGeneration", "Gemma 4", "torch"),
    KnownArchitecture("Gemma4UnifiedForCausalLM", "Gemma 4 12B (text)", "torch"),
    KnownArchitecture("Gemma4UnifiedForConditionalGeneration", "Gemma 4 12B", "torch"),
    KnownArchitecture("Qwen2MoeForCausalLM", "Qwen 1.5 MoE, 2 57B", "C"),
    KnownArchitecture("OlmoeForCausalLM", "OLMoE", "transformers"),
    KnownArchitecture("OlmoForCausalLM", "OLMo", "transformers"),
    KnownArchitecture("Olmo2ForCausalLM", "OLMo 2", "torch"),
    KnownArchitecture("Olmo3ForCausalLM", "OLMo 3", "torch"),
    KnownArchitecture("GlmForCausalLM", "GLM 4 9B", "transformers"),
    KnownArchitecture("Glm4ForCausalLM", "GLM 4 0414", "transformers"),
    KnownArchitecture("Glm4MoeForCausalLM", "GLM 4.5, 4.6", "transformers"),
    KnownArchitecture("Glm4MoeLiteForCausalLM", "GLM 4.7 Flash", "transformers"),
    KnownArchitecture("DeepseekV2ForCausalLM", "DeepSeek V2", "transformers"),
    KnownArchitecture("DeepseekV3ForCausalLM", "DeepSeek V3, R1, Kimi K2", "transformers"),
    KnownArchitecture("PhiForCausalLM", "Phi 1, 2", "transformers"),
    KnownArchitecture("PhimoeForCausalLM", "Phi 3.5 MoE", "transformers"),
    KnownArchitecture("SeedOssForCausalLM", "Seed-OSS", "transformers"),
    KnownArchitecture("Exaone4ForCausalLM", "EXAONE 4", "transformers"),
    KnownArchitecture("Ernie4_5ForCausalLM", "ERNIE 4.5", "transformers"),
    KnownArchitecture("Ernie4_5_MoeForCausalLM", "ERNIE 4.5 MoE", "transformers"),
    KnownArchitecture("HunYuanDenseV1ForCausalLM", "Hunyuan (dense)", "transformers"),
    KnownArchitecture("ApertusForCausalLM", "Apertus", "transformers"),
    KnownArchitecture("MiniMaxM2ForCausalLM", "MiniMax M2", "transformers"),
    KnownArchitecture("BitNetForCausalLM", "BitNet b1.58", "transformers"),
    KnownArchitecture("CohereForCausalLM", "Command R", "transformers"),
    KnownArchitecture("Cohere2ForCausalLM", "Command R7B, Command A", "transformers"),
    KnownArchitecture("NemotronForCausalLM", "Nemotron 3 8B", "transformers"),
    KnownArchitecture("Starcoder2ForCausalLM", "StarCoder 2", "transformers"),
    KnownArchitecture("GPTNeoXForCausalLM", "Pythia", "transformers"),
    KnownArchitecture("GPT2LMHeadModel", "GPT-2", "transformers"),
    KnownArchitecture("ArceeForCausalLM", "Arcee AFM", "transformers"),
    KnownArchitecture("HeliumForCausalLM", "Helium", "transformers"),
    KnownArchitecture("AfmoeForCausalLM", "Trinity Mini", "transformers"),
    KnownArchitecture("Apertus1p5TextForCausalLM", "Apertus 1.5 (text)", "transformers"),
    KnownArchitecture("AriaTextForCausalLM", "Aria (text)", "transformers"),
    KnownArchitecture("AXK1ForCausalLM", "A.X K1", "transformers"),
    KnownArchitecture("BeamForCausalLM", "Beam 1.0", "transformers"),
    KnownArchitecture("BioGptForCausalLM", "BioGPT", "transformers"),
    KnownArchitecture("CodeGenForCausalLM", "CodeGen", "transformers"),
    KnownArchitecture("Cohere2MoeForCausalLM", "Command A+", "transformers"),
    KnownArchitecture("CTRLLMHeadModel", "CTRL", "transformers"),
    KnownArchitecture("CwmForCausalLM", "Code World Model", "transformers"),
    KnownArchitecture("Dots1ForCausalLM", "dots.llm1", "transformers"),
    KnownArchitecture("ExaoneMoeForCausalLM", "K-EXAONE", "transformers"),
    KnownArchitecture("FlexOlmoForCausalLM", "FlexOlmo", "transformers"),
    KnownArchitecture("FlintForCausalLM", "Flint", "transformers"),
    KnownArchitecture("FuyuForCausalLM", "Fuyu", "transformers"),
    KnownArchitecture("GPTBigCodeForCausalLM", "StarCoder, SantaCoder", "transformers"),
    KnownArchitecture("GPTJForCausalLM", "GPT-J", "transformers"),
    KnownArchitecture("GraniteSWAForCausalLM", "Granite Swash", "transformers"),
    KnownArchitecture("GraniteMoeSWAForCausalLM", "Granite Swash MoE", "transformers"),
    KnownArchitecture("GraniteMoeSharedForCausalLM", "Granite MoE, shared experts", "transformers"),
    KnownArchitecture("HunYuanMoEV1ForCausalLM", "Hunyuan A13B", "transformers"),
    KnownArchitecture("HYV3ForCausalLM", "Hy3", "transformers"),
    KnownArchitecture("HyperCLOVAXForCausalLM", "HyperCLOVA X SEED", "transformers"),
    KnownArchitecture("Jais2ForCausalLM", "Jais 2", "transformers"),
    KnownArchitecture("JetMoeForCausalLM", "JetMoE", "transformers"),
    KnownArchitecture("Kolibri1ForCausalLM", "Kolibri 1", "transformers"),
    KnownArchitecture("LagunaForCausalLM", "Laguna XS.2", "transformers"),
    KnownArchitecture("LongcatFlashForCausalLM", "LongCat Flash", "transformers"),
    KnownArchitecture("MellumForCausalLM", "Mellum 2", "transformers"),
    KnownArchitecture("MiMoV2FlashForCausalLM", "MiMo V2 Flash", "transformers"),
    KnownArchitecture("MiniCPM3ForCausalLM", "MiniCPM 3", "transformers"),
    KnownArchitecture("ModernBertDecoderForCausalLM", "decoders like ModernBERT", "transformers"),
    KnownArchitecture("NanoChatForCausalLM", "nanochat", "transformers"),
    KnownArchitecture("OPTForCausalLM", "OPT", "transformers"),
    KnownArchitecture("PersimmonForCausalLM", "Persimmon", "transformers"),
    KnownArchitecture("SolarOpenForCausalLM", "Solar Open 100B", "transformers"),
    KnownArchitecture("StableLmForCausalLM", "StableLM", "transformers"),
    KnownArchitecture("VaultGemmaForCausalLM", "VaultGemma", "transformers"),
    KnownArchitecture("YoutuForCausalLM", "Youtu-LLM", "transformers"),
    KnownArchitecture("Qwen3VLForConditionalGeneration", "Qwen 3 VL", "C"),
    KnownArchitecture("Qwen2_5_VLForConditionalGeneration", "Qwen 2.5 VL", "C"),
    KnownArchitecture("LlavaForConditionalGeneration", "LLaVA", "C"),
    KnownArchitecture(
        "Llama4ForCausalLM", "Llama 4", "refused", "it has layers with chunked attention"
    ),
    KnownArchitecture("KimiLinearForCausalLM", "Kimi Linear", "refused", _RECURRENT),
    KnownArchitecture("JambaForCausalLM", "Jamba", "refused", _RECURRENT),
    KnownArchitecture("MambaForCausalLM", "Mamba", "refused", _NO_ATTENTION),
    KnownArchitecture(
        "BloomForCausalLM", "BLOOM", "refused", "its attention has no rotary positions"
    ),
    KnownArchitecture("FalconForCausalLM", "Falcon", "refused", _FIXED),
    KnownArchitecture("AXK2ForCausalLM", "A.X K2", "refused", _SPARSE),
    KnownArchitecture("DeepseekV32ForCausalLM", "DeepSeek V3.2", "refused", _SPARSE),
    KnownArchitecture("DeepseekV4ForCausalLM", "DeepSeek V4", "refused", _SPARSE),
    KnownArchitecture("Dots3NoteForCausalLM", "dots3-note", "refused", _SPARSE),
    KnownArchitecture("GlmMoeDsaForCausalLM", "GLM 5", "refused", _SPARSE),
    KnownArchitecture("HYV4ForCausalLM", "Hy4", "refused", _SPARSE),
    KnownArchitecture("MiniMaxM3VLForCausalLM", "MiniMax M3 (text)", "refused", _SPARSE),
    KnownArchitecture("BailingHybridForCausalLM", "Ling 3.0 Flash", "refused", _RECURRENT),
    KnownArchitecture("LaraMiniForCausalLM", "Lara 4 Mini", "refused", _RECURRENT),
    KnownArchitecture("Lfm3ForCausalLM", "LFM 3", "refused", _RECURRENT),
    KnownArchitecture("MiniMaxForCausalLM", "MiniMax Text 01", "refused", _RECURRENT),
    KnownArchitecture("Qwen4ExpForCausalLM", "Qwen 4 Exp", "refused", _RECURRENT),
    KnownArchitecture("RecurrentGemmaForCausalLM", "RecurrentGemma", "refused", _RECURRENT),
    KnownArchitecture("Zamba2ForCausalLM", "Zamba 2", "refused", _RECURRENT),
    KnownArchitecture(
        "ZayaForCausalLM", "ZAYA1", "refused", "its layers join attention and a convolution"
    ),
    KnownArchitecture("FalconMambaForCausalLM", "Falcon Mamba", "refused", _NO_ATTENTION),
    KnownArchitecture("RwkvForCausalLM", "RWKV 4", "refused", _NO_ATTENTION),
    KnownArchitecture("xLSTMForCausalLM", "xLSTM", "refused", _NO_ATTENTION),
    KnownArchitecture("DiffLlamaForCausalLM", "DiffLlama", "refused", _REPEATED),
    KnownArchitecture("DoryForCausalLM", "Nemotron Labs Dory", "refused", _REPEATED),
    KnownArchitecture("HrmTextForCausalLM", "HRM Text", "refused", _REPEATED),
    KnownArchitecture("DogeForCausalLM", "Doge", "refused", "its attention has a mask of its own"),
    KnownArchitecture("InklingForCausalLM", "Inkling", "refused", _BIAS),
    KnownArchitecture("Inkling2ForCausalLM", "Inkling 2 Small", "refused", _BIAS),
    KnownArchitecture("Inkling2LoopForCausalLM", "Inkling 2 Mini", "refused", _BIAS),
    KnownArchitecture("MptForCausalLM", "MPT", "refused", "its attention has no rotary positions"),
    KnownArchitecture("GPTNeoForCausalLM", "GPT-Neo", "refused", _FIXED),
    KnownArchitecture("GPTNeoXJapaneseForCausalLM", "GPT-NeoX Japanese", "refused", _FIXED),
    KnownArchitecture("XGLMForCausalLM", "XGLM", "refused", _FIXED),
    KnownArchitecture("T5ForConditionalGeneration", "T5", "refused", "it has an encoder"),
)


def find_refusal(architecture: str) -> str | None:
    """Return why an architecture is refused. Returns None if it runs, or has not been tried."""
    reasons = {each.name: each.reason for each in KNOWN_ARCHITECTURES if each.way == "refused"}
    return reasons.get(architecture)
