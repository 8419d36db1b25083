"""Guarantees broken on purpose: each change to the source must turn the named tests red.

A copy of the package is changed by one line and the tests run against the copy. A mutation whose text no longer occurs in
the source fails too, so the table cannot rot.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MUTATIONS = {
    # mathematics
    "halved sigma": ("theory/gaussian.py", "return like_input(_up(c))", "return like_input(_up(c / 2))", "theory/test_gaussian.py"),
    "sigma rounded down": ("theory/gaussian.py", "return x + 8 * _ULP * np.abs(x)", "return x - 1e-11 * np.abs(x)", "theory/test_gaussian.py -k oracle"),
    "condition 1 dropped": ("theory/gaussian.py", "np.maximum(1.0, np.sqrt(2 * np.maximum(s, 0.0)))", "np.sqrt(2 * np.maximum(s, 0.0))", "theory/test_gaussian.py"),
    "sensitivity without its proof": ("theory/spectral.py", "if _has_cholesky(dense):", "if True:", "theory/test_sensitivity.py"),
    "per-map sensitivity": ("theory/sensitivity.py", '"rows": float(np.sqrt(np.sum((whitening * rows) ** 2)) * _UP)', '"rows": published_sensitivity(layer, 1 / whitening**2 / np.sum(1 / whitening**2))', "theory/test_sensitivity.py"),
    "symbol of one phase only": ("theory/spectral.py", "shift, phase = offset // stride, offset % stride", "shift, phase = offset // stride, 0 * offset", "theory/test_sensitivity.py"),
    "failure probability ignored": ("theory/confidence.py", "betaincinv(np.maximum(k, 1), n - k + 1, alpha)", "betaincinv(np.maximum(k, 1), n - k + 1, 0.25)", "theory/test_confidence.py"),
    "no union over classes": ("theory/confidence.py", "np.log(2 * mean.shape[-1] / alpha)", "np.log(2 / alpha)", "theory/test_confidence.py"),
    "anytime bound with half the threshold": ("theory/confidence.py", "threshold = -np.log(alpha) + 1e-9", "threshold = -0.5 * np.log(alpha)", "theory/test_confidence.py"),
    "radius too large by a tenth": ("theory/certificates.py", "radius = (upper - lower) / 2 - ", "radius = (upper - lower) / 1.8 - ", "theory/test_certificates.py"),
    "divided by epsilon twice": ("theory/certificates.py", "lambda e, d: 1 / noise_multiplier(e, d, mechanism)", "lambda e, d: e / noise_multiplier(e, d, mechanism)", "theory/test_certificates.py"),
    "mechanism without r": ("privacy/mechanism.py", "noise = rounded_gaussian(stream, grid.size, torch.from_numpy(std / grid))", "noise = rounded_gaussian(stream, grid.size, torch.from_numpy(np.full_like(std, self.sigma) / grid))", "privacy/test_mechanism.py"),
    "mechanism noise beside the grid": ("privacy/mechanism.py", "noisy = to_grid_(torch.tensor(answer), torch.from_numpy(grid)).add_(noise).numpy() * grid", "noisy = answer + noise.numpy() * grid", "privacy/test_mechanism.py -k grid"),
    # clipping
    "no clipping": ("clipping/engine.py", "factors = (self.max_grad_norm / squares.sqrt()).clamp(max=1.0)", "factors = torch.ones_like(squares)", "clipping/test_clipping.py"),
    "clip the batch mean": ("clipping/engine.py", "factors = (self.max_grad_norm / squares.sqrt()).clamp(max=1.0)", "factors = (self.max_grad_norm / squares.mean().sqrt()).clamp(max=1.0).expand_as(squares)", "clipping/test_clipping.py"),
    "biases not in the norm": ("clipping/fast_path.py", "for _, gradient in self._gradients:", 'for _, gradient in [f for f in self._gradients if not f[0].endswith("bias")]:', "clipping/test_clipping.py"),
    "each layer clipped by itself": ("clipping/fast_path.py", "sums[name] = gradient.weighted_sum(factors)", "sums[name] = gradient.weighted_sum((1 / gradient.squared_norms().sqrt()).clamp(max=1))", "clipping/test_clipping.py"),
    "copies clipped before averaging": ("clipping/fast_path.py", "average = torch.full_like(losses, 1 / self.copies)", "average = torch.ones_like(losses)", "clipping/test_clipping_noise.py"),
    "squares of vectors multiplied in float32": ("clipping/rules/linear.py", "squares = (lengths * _lengths(g)).square()", "squares = (a.square().sum(dim=1) * g.square().sum(dim=1)).double()", "clipping/test_clipping_rounding.py -k vanish"),
    "power of two left in a huge input": ("clipping/rules/linear.py", "HUGE = 2.0**40", "HUGE = 2.0**1000", "clipping/test_clipping_rounding.py -k huge_input"),
    "all examples in one float32 sum": ("clipping/rules/forms.py", "step = math.ceil(examples / max(1, math.ceil(examples / GROUP)))", "step = examples", "clipping/test_clipping_rounding.py -k large_batch"),
    "micro-batches added in float32": ("clipping/engine.py", "total[name] = total[name].double().add_(gradient) if name in total else gradient", "total[name] = total[name].float().add_(gradient) if name in total else gradient", "clipping/test_clipping_rounding.py -k large_batch"),
    "gradients made again not scaled down": ("clipping/rules/forms.py", "factors[examples] * shrink, part)", "factors[examples], part)", "clipping/test_clipping_rounding.py -k made_again"),
    "images that cancel in a joint product": ("clipping/rules/convolution.py", "together = factors.masked_fill(alone, 0.0)", "together, alone[:] = factors, False", "clipping/test_clipping_convolution.py -k joint"),
    "joint products of any size": ("clipping/rules/forms.py", "and error(2 * joint) <= GROUP * GROUP * unit:", "and error(joint) >= 0:", "clipping/test_clipping_convolution.py -k slack"),
    "positions of all sequences in one sum": ("clipping/rules/linear.py", "return Deferred(squares, lambda factors: sum_again(again, squares, factors, chunk))", "return Deferred(squares, lambda factors: (g * factors.to(g.dtype)[:, None, None]).flatten(0, 1).T @ a.flatten(0, 1))", "clipping/test_clipping_rounding.py -k cancel"),
    "looked-up rows added in float32, unmerged": ("clipping/rules/embedding.py", "    return {\"weight\": Deferred(squares, summed)}", "    return {\"weight\": Deferred(squares, lambda f: g.new_zeros(vocabulary, width).index_add_(0, words.flatten(), (values * f[:, None, None].to(g.dtype)).flatten(0, 1)))}", "clipping/test_clipping_rounding.py -k cancel"),
    "norms by one float32 sum": ("clipping/rules/forms.py", "    whole = vectors.shape[-1] // NORM_BLOCK * NORM_BLOCK\n", "    return torch.linalg.vector_norm(vectors, dim=-1).double().square()\n", "clipping/test_clipping_rounding.py -k lengths"),
    "clip factors rounded up": ("clipping/rules/forms.py", "return torch.where(rounded.double() > factors, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)", "return rounded", "clipping/test_clipping_rounding.py -k rounded_down"),
    "sensitivity without rounding": ("clipping/engine.py", "return math.nextafter(self.max_grad_norm * (1 + slack), math.inf)", "return self.max_grad_norm", "clipping/test_clipping_rounding.py -k covers"),
    "what is not finite enters the sum": ("clipping/engine.py", "return torch.where(squares.isfinite() & losses.isfinite(), factors, 0.0)", "return factors", "clipping/test_clipping_rounding.py -k sensitivity"),
    "zero times NaN enters the sum": ("clipping/rules/forms.py", "        if len(zero):  # 0 · NaN is NaN\n            flat[:, zero] = 0\n", "", "clipping/test_clipping_rounding.py -k sensitivity"),
    "what is not finite is an error": ("clipping/engine.py", "        skipped = ~(square.isfinite() & value.isfinite())\n", "        skipped = ~(square.isfinite() & value.isfinite())\n        if skipped.any():\n            raise InvalidInputError('an example is not finite')\n", "training/test_loop.py -k no_record"),
    "one odd row sends all examples the slow way": ("clipping/rules/generic.py", "if call.synthetic and 2 * int(wrong.sum()) > len(wrong):", "if bool(wrong.any()):", "clipping/test_clipping_rounding.py -k odd_row"),
    "a majority of the data decides how a layer is run": ("clipping/rules/generic.py", "if call.synthetic and 2 *", "if 2 *", "hostile/test_privacy.py -k majority"),
    "labels not checked": ("training/examples.py", "    outside = ((values < 0) | (values >= count)).reshape(len(values), -1)\n", "    outside = torch.zeros(len(values), 1, dtype=torch.bool)\n", "training/test_loop.py -k outside"),
    "score of an example that is not finite": ("models/gradient_scores.py", "return torch.where(finite, scores, 0.0)", "return scores", "models/test_redistribution.py -k finite"),
    # examples that mix, hooks
    "mixing looked for at example 0 only": ("clipping/separation.py", "return cls(torch.arange(count), (order[: count // 2], order[count // 2 :]))", "return cls(torch.arange(count), (torch.arange(1), torch.arange(1)))", "clipping/test_separation.py -k mixes"),
    "losses not compared with replaced examples": ("clipping/separation.py", "return max([_gap(a.losses[rows], b.losses[rows]), *(", "return max([0.0, *(", "clipping/test_separation.py"),
    "gradients not compared with replaced examples": ("clipping/separation.py", "*(_gradient_gap(g, h) for g, h in pairs)])", "0.0])", "clipping/test_separation.py"),
    "half alone not compared": ("clipping/separation.py", "if differs.any():", "if False:", "clipping/test_separation.py -k size_of_the_batch"),
    "buffers not compared": ("clipping/separation.py", "if name not in b.buffers or not same_values(value, b.buffers[name]):", "if False:", "clipping/test_separation.py -k later"),
    "memory between passes not looked for": ("clipping/separation.py", "if change > _TOLERANCE[usual.losses.dtype]:", "if False:", "clipping/test_separation.py -k memory"),
    "parameters changed by a pass": ("clipping/passes.py", "if name in self._values and not same_values(parameter.detach(), self._values[name]):", "if False:", "clipping/test_separation.py -k changed_weights"),
    "checked in the first step only": ("clipping/separation.py", "return call in _FIRST_CALLS or secrets.randbelow(_EVERY) == 0", "return call == 1", "clipping/test_separation.py -k later"),
    "check draws from the run's generators": ("clipping/passes.py", "                tensor.data.copy_(self._values[name])\n        self.before.restore()", "                tensor.data.copy_(self._values[name])\n        torch.rand(1)", "clipping/test_separation.py -k trace"),
    "hooks not looked at": ("clipping/units.py", "if any(getattr(module, kind) for kind in _HOOKS):", "if False:", "clipping/test_model_hooks.py"),
    "global hooks not looked at": ("clipping/units.py", 'if any(getattr(torch_module, "_global" + kind) for kind in _HOOKS):', "if False:", "clipping/test_model_hooks.py -k all_modules"),
    "hooks of outputs not looked at": ("clipping/hooks.py", "if len(call.output_hooks) > 1:", "if False:", "clipping/test_model_hooks.py -k first_step"),
    "hooks of parameters not looked at": ("clipping/units.py", "if unit.module.get_parameter(name)._backward_hooks:", "if False:", "clipping/test_model_hooks.py -k first_step"),
    "replaced forward not looked at": ("clipping/units.py", 'if "forward" in vars(module):', "if False:", "clipping/test_model_hooks.py -k first_step"),
    "hooks after accumulation accepted": ("clipping/validate_model.py", "if parameter._post_accumulate_grad_hooks:", "if False:", "clipping/test_model_hooks.py -k accumulation"),
    "fast path not held against a backward pass": ("clipping/fast_path.py", "if not gap <= tolerance * scale:", "if False:", "clipping/test_model_hooks.py -k nothing_shows"),
    "copies for the rows not tried": ("clipping/engine.py", "tried = by_row or any(", "tried = any(", "clipping/test_row_parameters.py -k never_tried"),
    "copies for the rows seen for one shape only": ("clipping/fast_path.py", "list(rows.shape[1:])", "0", "clipping/test_row_parameters.py -k another_shape"),
    "attention without the gradient of its keys": ("clipping/rules/attention.py", "g if i == place else", "g if i == place != 1 else", "clipping/test_composites.py -k examples"),
    "hidden states a step too late": ("clipping/rules/recurrent.py", "torch.cat([start[0].unsqueeze(1), states[:, :-1]], dim=1)", "states", "clipping/test_composites.py -k lstm"),
    "buffers move with every pass": ("clipping/engine.py", "                buffers.restore()\n                outputs", "                outputs", "clipping/test_exotic_modules.py -k counts_passes"),
    # noise, sampling and the loop
    "noise reused at every step": ("runtime/randomness.py", 'child(f"{purpose} {step}")', 'child(f"{purpose}")', "runtime/test_randomness.py"),
    "one key for all who share a seed": ("training/accounted_run.py", "Randomness.from_seed(seed, context)", 'Randomness.from_seed(seed, "")', "training/test_claims.py -k one_seed"),
    "seeded noise on other first weights": ("training/accounted_run.py", " {data_digest} {tensors_digest(initial.tensors)}", " {data_digest}", "training/test_claims.py -k share"),
    "a seeded run guaranteed": ("privacy/statement.py", "if noise is not None and noise.seeded and composition.groups:", "if False:", "training/test_loop.py -k secret"),
    "adjacency not told": ("training/settings.py", 'return "zero-out" if self.sampling_rate is None and self.population is None else "add-or-remove-one"', 'return "add-or-remove-one"', "training/test_claims.py -k adjacency"),
    "private number of examples in the ledger": ("training/accounted_run.py", 'dataset_size=examples if settings.adjacency == "zero-out" else settings.population', "dataset_size=examples", "training/test_claims.py -k adjacency"),
    "values near a half rounded by guess": ("runtime/rounded_gaussian.py", "0.5 - scale * TOLERANCE", "0.5 + scale * TOLERANCE", "runtime/test_rounded_gaussian.py -k doubtful"),
    "tail from too few bits": ("runtime/rounded_gaussian.py", "RADII = (2.0**-10, 5.5)", "RADII = (2.0**-10, 50.0)", "runtime/test_rounded_gaussian.py -k tail"),
    "sum not on the grid": ("runtime/grid_release.py", "return values.double().mul_(1 / grid).round_()", "return values.double().mul_(1 / grid)", "runtime/test_grid_release.py"),
    "rounding not in the bound": ("runtime/grid_release.py", "(self.sensitivity + self.grid * math.sqrt(self.size)) * _UP", "self.sensitivity * _UP", "runtime/test_grid_release.py"),
    "half the noise": ("runtime/grid_release.py", "return self.noise_multiplier * (self.bound / self.grid) * _UP", "return self.noise_multiplier * (self.bound / self.grid) / 2", "training/test_loop.py -k variance"),
    "fixed batch size": ("runtime/randomness.py", "return np.flatnonzero(words < np.uint64(int(rate * 2.0**64)))", "return np.argsort(words)[: int(count * rate)]", "runtime/test_randomness.py"),
    "divided by the realised batch": ("training/step.py", "released = self._release([*sums.gradients.values()], step)", "released = [r * settings.batch_size / max(1, len(sample)) for r in self._release([*sums.gradients.values()], step)]", "training/test_loop.py -k expected"),
    "noise per rank": ("training/step.py", "        processes.add_up([*sums.gradients.values()])\n", "        self._release([*sums.gradients.values()], step)\n        processes.add_up([*sums.gradients.values()])\n", "training/test_processes.py"),
    "not reserved in advance": ("training/accounted_run.py", "self.ledger.reserve(self._steps(stop - step), first_step=step, stream=self.stream)", "self.ledger.reserve(self._steps(1), first_step=step, stream=self.stream)", "training/test_loop.py"),
    "undercount after resume": ("privacy/ledger.py", "self._records = list(records)", "self._records = list(records)[:-1]", "training/test_loop.py"),
    "same noise for another run": ("training/accounted_run.py", "if not same:", "if False:", "training/test_loop.py"),
    "loss not compared on resume": ("training/fingerprint.py", "            qualified_name(self.loss),\n            self.examples,", "            self.examples,", "training/test_loop.py -k resume"),
    "shortened ledger of a finished run": ("training/loop.py", 'ledger.require_head(*weights.record["ledger"])', "pass", "training/test_loop.py -k shortened"),
    "own optimizer not compared on resume": ("training/fingerprint.py", "if self.optimizer:", "if False:", "training/test_own_optimizer.py -k noise"),
    "numbers of an optimizer not compared": ("training/optimizer.py", "return *names, json.dumps(self.record(), sort_keys=True)", "return (*names,)", "training/test_own_optimizer.py -k noise"),
    "learning rates not resumed": ("training/optimizer.py", "group.update(_with_types_of(_without_parameters(group), values))", "pass", "training/test_own_optimizer.py -k same_bits"),
    "state that is lost accepted": ("training/optimizer.py", "if foreign or not same or", "if foreign or", "training/test_own_optimizer.py -k refused"),
    "a stopped run says it ran all steps": ("training/accounted_run.py", '"steps": steps,', '"steps": self.settings.steps,', "training/test_callbacks.py -k returns_false"),
    "a stop runs on": ("training/loop.py", "while state.step < last and not stopped:", "while state.step < last:", "training/test_callbacks.py -k stop"),
    "a signal saves no checkpoint": ("training/loop.py", "                if is_due or interrupted:\n", "                if is_due:\n                    paid = 0.0\n                if is_due:\n", "training/test_interrupt.py -k same_bits"),
    "a signal in the middle of a step": ("training/interrupt.py", "        if self.requested:\n", "        if True:\n", "training/test_interrupt.py -k waits"),
    "an interrupted callback may change the weights": ("training/state.py", "            interruption = error\n", "            raise error\n", "training/test_interrupt.py -k changed"),
    "one rank stops alone": ("training/loop.py", "processes.any(signals.requested) and", "signals.requested and", "training/test_processes.py -k signal"),
    "finishing trains on": ("training/loop.py", "last = state.step if finish else settings.steps", "last = settings.steps", "training/test_finish.py -k callback"),
    "finished without a step": ("training/loop.py", "if finish and state.step == 0:", "if False:", "training/test_finish.py -k cannot"),
    "finished without the average": ("training/loop.py", "        state.use_average()\n", "        if not finish:\n            state.use_average()\n", "training/test_finish.py -k callback"),
    "steps repeated on another device": ("training/accounted_run.py", "if first != device:", "if False:", "training/test_finish.py -k device"),
    "lines of lost steps kept": ("training/held_out.py", 'if line["step"] <= step and', "if", "training/test_held_out.py -k finishing"),
    "epsilon of a step counts a crash": ("training/accounted_run.py", "record.block.first_step <= step)", "True)", "training/test_finish.py -k same_after"),
    "one-off release with other randomness": ("training/one_off_release.py", "        torch.manual_seed(int(stream.words(1)[0] >> np.uint64(1)))\n", "", "training/test_loop.py -k one_off"),
    "score norm in single precision": ("models/gradient_scores.py", "gradient.detach().double().abs()", "gradient.detach().abs()", "models/test_redistribution.py"),
    "secret kept": ("runtime/run_folder.py", "self.secret.unlink(missing_ok=True)", "pass", "training/test_loop.py"),
    "checkpoint checksum not checked": ("runtime/tensors.py", 'if metadata.get("sha256") != tensors_digest(tensors, record):', "if False:", "training/test_checkpoint.py"),
    # the noisy layer
    "factor's gradient without its input": ("clipping/rules/normalisation.py", "gradients = call.input * call.output_gradient", "gradients = call.output_gradient", "clipping/test_clipping.py -k scaled"),
    "way back through a convolution off by a pixel": ("clipping/rules/input_gradient.py", "kernel[place, ..., place : place + kernel_width] = weight", "kernel[place, ..., :kernel_width] = weight", "clipping/test_clipping.py -k scaled"),
    "one noise for the whole batch": ("models/noise_layer.py", "torch.randn(shape, generator", "torch.randn((1, *shape[1:]), generator", "models/test_noisy.py"),
    "noise without r": ("models/noisy.py", "GaussianNoise(torch.ones_like(values) if learned else values)", "GaussianNoise(torch.full_like(values, float(values.mean())))", "models/test_noisy.py"),
    "connection around the noise": ("models/input_path.py", "if torch.equal(self._output(batch), self._known[count]):", "if True:", "certificates/test_input_path.py -k OddAround"),
    "layer gets something else": ("models/input_path.py", "    if not same:", "    if False:", "certificates/test_input_path.py -k OddScaled"),
    "values of the input read before the layer": ("models/input_path.py", "    if watch.uses:", "    if False:", "certificates/test_input_path.py -k construction"),
    "values read into lists and arrays not seen": ("models/watched_tensor.py", "            self.uses.append(name)\n\n", "            pass\n\n", "certificates/test_input_path.py -k Unwrapped"),
    "trace in one mode of torch only": ("models/input_path.py", "itertools.product(_BATCHES, (torch.enable_grad, torch.inference_mode))", "itertools.product(_BATCHES, (torch.enable_grad,))", "certificates/test_input_path.py -k FrugalByMode"),
    "values read in another thread not seen": ("models/input_path.py", "        model(as_watched(copied, watch))", "        pass", "certificates/test_input_path.py -k ByThread"),
    "operations in another thread not seen": ("models/watched_tensor.py", "watch.call(func, args, kwargs, seen=True)", "(func(*args, **kwargs), True)", "hostile/test_certificates.py -k BesideInThread"),
    "address of the input given away": ("models/watched_tensor.py", "            if self.guards:", "            if False:", "hostile/test_certificates.py -k another_library"),
    "last input kept for the next pass": ("models/input_path.py", "for inputs in (x, x, x, x + 1):", "for inputs in (x, x, x, x):", "hostile/test_certificates.py -k LastInput"),
    "inside of the layer not watched": ("models/validate_network.py", "        require_one_product(model, x)\n", "", "hostile/test_certificates.py -k own_class"),
    "hooks for all modules": ("models/validate_network.py", "if _global_forward_hooks or _global_forward_pre_hooks:", "if False:", "hostile/test_certificates.py -k all_modules"),
    "example counted twice in a report": ("certificates/recheck.py", 'if len({row["index"] for row in rows}) < len(rows):', "if False:", "hostile/test_files.py -k twice"),
    "results of other weights reported": ("report/run_record.py", "made_with == weights", "True", "hostile/test_files.py -k weights"),
    "forward of the layer replaced": ("models/validate_network.py", "_replaces_methods(part)", "False", "certificates/test_input_path.py -k replaced"),
    # AdLM, whose noise is as published and whose claim is not endorsed
    "AdLM relevance not in the ledger": ("baselines/adlm/preparation.py", "event=_event(settings)", "event=None", "baselines/test_adlm_preparation.py -k statement"),
    "AdLM training without its reason": ("baselines/adlm/preparation.py", '"not_private": _NOT_PRIVATE', '"not_private": "private"', "baselines/test_adlm_preparation.py -k statement"),
    "AdLM half the input noise": ("baselines/adlm/budget.py", "return sensitivity / (shares * epsilon * batch_size)", "return sensitivity / (2 * shares * epsilon * batch_size)", "baselines/test_adlm_budget.py"),
    "AdLM noise reused at every step": ("baselines/adlm/network.py", "(int(self.key), int(self.draws))", "(int(self.key), 0)", "baselines/test_adlm_network.py"),
    "AdLM noise at testing": ("baselines/adlm/network.py", "        if self.training:", "        if True:", "baselines/test_adlm_network.py"),
    "AdLM noise left in the model": ("baselines/adlm/network.py", "            buffer.zero_()", "            pass", "baselines/test_adlm_network.py"),
    "AdLM relevance without epsilon": ("baselines/adlm/relevance.py", "(z + epsilon * torch.where(z >= 0, 1.0, -1.0))", "(z + 1e-9)", "baselines/test_adlm_relevance.py"),
    # attacks
    "attack without the seed": ("runtime/randomness.py", 'f"{seed}|{purpose}|{part}"', 'f"{purpose}|{part}"', "runtime/test_seeded_generator.py"),
    "attack sees no noise": ("attacks/objective.py", "self.noisy = isinstance(model, NoisyNetwork) and draws > 0", "self.noisy = False", "attacks/test_objective.py"),
    "attack sees the same noise at every look": ("attacks/objective.py", "(self._noise(draws) if noise is None else noise)[:, None]", "(torch.zeros_like(self._noise(draws)) if noise is None else noise)[:, None]", "attacks/test_objective.py -k fresh"),
    "linf ball without walls": ("attacks/ball.py", "change = torch.minimum(torch.maximum(change, -limit), limit)", "change = torch.minimum(change, limit)", "attacks/test_ball.py"),
    "pixels out of range": ("attacks/ball.py", "inside if self.box is None else inside.clamp(*self.box)", "inside", "attacks/test_ball.py"),
    "attack downhill": ("attacks/projected_gradient.py", "return ball.project(x + ball.step(direction, self.length))", "return ball.project(x - ball.step(direction, self.length))", "attacks/test_foolbox.py"),
    "momentum forgotten": ("attacks/projected_gradient.py", "self.momentum * self.sum[rows] + unit", "unit", "attacks/test_step_rules.py"),
    "harness keeps images that are no numbers": ("attacks/harness.py", "safe = torch.where(per_image(finite, inputs), claimed, inputs)", "safe = claimed", "attacks/test_harness.py -k nonsense"),
    "votes of the clean image for the attacked one": ("attacks/harness.py", "vote_counts(model, images[rows], count,", "vote_counts(model, inputs[rows], count,", "attacks/test_harness.py -k fresh"),
    "certificate of another class": ("attacks/harness.py", "np.where(agrees, certificates[rule], 0.0)", "certificates[rule]", "attacks/test_harness.py -k certificates"),
    "contradicted certificates not noticed": ("attacks/robust_accuracy.py", 'broken = certified & settled_wrong(rows, "", alpha)', 'broken = certified & (alpha > 1)', "attacks/test_robust_accuracy.py"),
    "one image's failure probability for all": ("attacks/robust_accuracy.py", "alpha = failure_prob / n / max(1, classes - 1)", "alpha = failure_prob", "attacks/test_robust_accuracy.py -k shared"),
    "majority by half the evidence": ("theory/majority.py", "<= np.log(alpha))", "<= 0.5 * np.log(alpha))", "theory/test_majority.py"),
    "interval of one side only": ("theory/confidence.py", "z = -ndtri(alpha / 2)", "z = -ndtri(alpha)", "theory/test_proportions.py"),
    "attacks of other weights kept": ("attacks/cells.py", "if made_with != weights:", "if False:", "attacks/test_evaluate.py -k foreign"),
    "an attack from outside trains the model": ("attacks/craft.py", "if fingerprint(model) != weights:", "if False:", "attacks/test_outside_attacks.py -k no_attacks"),
    "zero gradients not noticed": ("attacks/sanity_checks.py", "if zero > 0.02 * n:", "if False:", "attacks/test_sanity_probes.py -k zero"),
    "harness believes the attack's images": ("attacks/harness.py", "Ball.around(inputs, settings.budget, settings.norm).project(safe)", "safe", "attacks/test_harness.py"),
    "flip claimed without proof": ("attacks/falsify.py", "np.asarray(clopper_pearson_lower(votes[rows, 1], both, failure_prob / len(rows))) > 0.5", "votes[rows, 1] / both > 0.5", "attacks/test_falsify.py -k chance"),
    "failure probability of one point for all": ("attacks/falsify.py", "failure_prob / len(rows)", "failure_prob", "attacks/test_falsify.py -k shared"),
    "search leaves the ball": ("attacks/falsify.py", "np.maximum(radius * (1 - 1e-6) - rounding, 0)", "np.maximum(1.4 * radius, 0)", "attacks/test_falsify.py -k too_large"),
    "worst direction not tried": ("attacks/falsify.py", "    if direction is not None:", "    if False:", "attacks/test_falsify.py -k worst_direction"),
    # certificates
    "draws of a certificate reused": ("certificates/votes.py", "spawn_key=(1, block)", "spawn_key=(1, 0)", "certificates/test_votes.py"),
    "selection draws are the counted ones": ("certificates/votes.py", 'f"certify {purpose} {stream}"', 'f"certify {stream}"', "certificates/test_votes.py -k purpose"),
    "votes with half the noise": ("models/split_network.py", "noise = self._noisy.noise.std * normals", "noise = 0.5 * self._noisy.noise.std * normals", "certificates/test_votes.py -k exact"),
    "bias added with every noise": ("models/split_network.py", 'linear.register_parameter("bias", None)', "pass", "certificates/test_votes.py -k cut_network"),
    "first layer cut around a connection": ("models/split_network.py", "rest = NoisyNetwork(copy.deepcopy(own.network[1]), own.input_shape, place=\"first-layer\").eval()", "rest = NoisyNetwork(own.network[1], own.input_shape, place=\"first-layer\").eval()", "certificates/test_votes.py -k around"),
    "certificate ignores its failure probability": ("certificates/bounds.py", "np.where(selection.each, failure_prob / 2, failure_prob)", "0.3", "certificates/test_soundness.py -k failure_rate"),
    "rivals without a confidence bound": ("certificates/bounds.py", "_without(clopper_pearson_upper(totals, draws, share), selection.top)", "_without(totals / draws, selection.top)", "certificates/test_soundness.py -k failure_rate"),
    "running bounds ignore the failure probability": ("certificates/bounds.py", "together = np.array(anytime_bounds(top, draws, failure_prob, prior))", "together = np.array(anytime_bounds(top, draws, 0.6, prior))", "certificates/test_soundness.py -k edge"),
    "last look takes more than its half": ("certificates/sampling.py", "known.intersect(fixed_bounds(totals, look, chosen, last))", "known.intersect(fixed_bounds(totals, look, chosen, 10 * settings.failure_prob))", "certificates/test_soundness.py -k edge"),
    "yes without proof": ("certificates/sampling.py", "yes = (proven >= self.radius) & (proven > 0)", "yes = cap >= self.radius", "certificates/test_sampling.py"),
    "class chosen on the counted draws": ("certificates/certify.py", 'purpose="counted", scores=scores)', 'purpose="selection", scores=scores)', "certificates/test_certify.py -k counted"),
    "noise by place in the chunk": ("certificates/certify.py", 'Votes(network, x, places, source=noise, purpose="counted"', 'Votes(network, x, np.arange(len(x)), source=noise, purpose="counted"', "certificates/test_certify.py -k company"),
    "radius from the lower bound of the sensitivity": ("certificates/certify.py", "bounds.q_upper, delta.upper, published, rounding, all_rules)", "bounds.q_upper, delta.lower, published, rounding, all_rules)", "certificates/test_certify.py -k rules"),
    "batch statistics certified": ("certificates/validate.py", "if not torch.allclose(outputs, alone, rtol=1e-3, atol=1e-3 * size):", "if False:", "certificates/test_validate.py"),
    "randomness in the rest certified": ("certificates/validate.py", "if not torch.equal(outputs, network.outputs(h)):", "if False:", "certificates/test_validate.py"),
    "way of the input not looked at again": ("certificates/validate.py", "        require_sound(model)\n", "", "certificates/test_input_path.py -k after_construction"),
    "certified inputs not compared": ("certificates/validate.py", "    require_same_everywhere(model, inputs, reach)\n", "", "certificates/test_input_path.py -k hides"),
    "moves around the inputs not compared": ("models/input_path.py", "for move in (0.0, *moves, *(-move for move in moves))]", "for move in (0.0,)]", "certificates/test_input_path.py -k hides"),
    "call counter not noticed": ("certificates/validate.py", "        require_steady(model, inputs[:1].clone().to(model.noisy.noise.std))\n", "", "certificates/test_input_path.py -k Counting"),
    "branch of a whole batch": ("models/split_network.py", "if self._one_by_one else", "if False else", "certificates/test_input_path.py -k draw_by_draw"),
    "cut on a way that was not traced": ("models/split_network.py", "if rest.input_path != TRACED:", "if False:", "certificates/test_input_path.py -k not_cut_behind"),
    "cut where rounding is not small": ("models/split_network.py", "        _require_small_rounding(rest, own.noisy.noise.std)\n", "", "certificates/test_rounding.py -k sum_of_roundings"),
    "rounding not taken off the radius": ("theory/certificates.py", ' - nonnegative_array("rounding", rounding)', ' - 0 * nonnegative_array("rounding", rounding)', "certificates/test_rounding.py -k coarse"),
    "rounding without the bias": ("models/noisy.py", "return np.asarray(2 * (1 + 1e-9) * (relative + underflow))", "return np.asarray(0.1 * (relative + underflow))", "certificates/test_rounding.py -k coarse"),
    "rounding far away not in the sensitivity": ("models/noisy.py", "upper=(bound.upper / sigma + rounding) * (1 + 1e-9)", "upper=bound.upper / sigma * (1 + 1e-9)", "certificates/test_rounding.py -k coarse"),
    "rounding not in the stopping rule": ("certificates/certify.py", "(settings.radius * delta.upper + rounding) * _UP", "(settings.radius * delta.upper + 0 * rounding) * _UP", "certificates/test_rounding.py -k question"),
    "imprecise layer not noticed": ("certificates/validate.py", "if not bool((seen <= allowed).all()):", "if False:", "certificates/test_rounding.py -k less_precise"),
    "half precision certified": ("certificates/validate.py", "and tensor.dtype not in kinds:", "and False:", "certificates/test_rounding.py -k half_precision"),
    "products in a shorter type not noticed": ("runtime/machine.py", 'if value not in ("none", "ieee"):', "if False:", "runtime/test_precision.py"),
    "autocast not noticed": ("runtime/machine.py", "if torch.is_autocast_enabled(device):", "if False:", "certificates/test_rounding.py -k half_precision"),
    "known seed for inputs from outside": ("certificates/record.py", "seed: int | None = None", "seed: int | None = 0", "certificates/test_verify.py -k fresh"),
    "fresh noise that anybody knows": ("certificates/votes.py", "return cls(secrets.randbits(128))", "seed = 0", "certificates/test_verify.py -k knows_the_seed"),
    "seeded votes changed": ("certificates/votes.py", "securesgd seed {int(seed)}", "securesgd seed {int(seed) + 1}", "certificates/test_votes.py -k stay_what"),
    "rows of two settings under one record": ("certificates/stored_certificates.py", 'if digests.get(record_key(row)) == row["record"]]', 'if record_key(row) in digests]', "certificates/test_forged_files.py -k stop_at_any_write"),
    "edited radius accepted": ("certificates/recheck.py", "        if wrong is not None:", "        if False:", "certificates/test_forged_files.py -k edited_row"),
    "edited label accepted": ("certificates/stored_proofs.py", 'if row["label"] != int(targets[row["index"]]):', "if False:", "certificates/test_forged_files.py -k label"),
    "forged sensitivity believed": ("certificates/sensitivity.py", "proven = model.sensitivity(norm, stated)", "proven = stated", "certificates/test_forged_files.py -k forged"),
    "record's sensitivity believed": ("certificates/stored_proofs.py", "if not math.isclose(stated, true, rel_tol=1e-9):", "if False:", "certificates/test_forged_files.py -k smaller_sensitivity"),
    "edited interval radius accepted": ("certificates/stored_proofs.py", "    if not true.all():", "    if False:", "certificates/test_interval_family.py -k edited_row"),
    "interval check lets a flip pass": ("attacks/falsify_intervals.py", '"sound": not broken', '"sound": True', "certificates/test_interval_family.py -k too_large"),
    "report believes radii": ("report/run_record.py", "            require_true_radii(own_rows, stated, path.name)\n", "            pass\n", "certificates/test_forged_files.py -k edited_row"),
    "certificates of other weights kept": ("certificates/stored_certificates.py", "if record[name] != new[name]]", "if False]", "certificates/test_run_certificates.py -k weights_or_data"),
    "sensitivity of other weights": ("certificates/sensitivity.py", 'if content["weights"] == weights:', "if True:", "certificates/test_run_certificates.py -k found_once"),
    "classifier keeps a stale sensitivity": ("certificates/verify.py", "if self._known is None or self._known[0] != weights:", "if self._known is None:", "certificates/test_verify.py -k changed"),
    "a broken certificate is no error": ("attacks/falsify.py", 'result["sound"] = tight["violations"] <= result["allowed"]', 'result["sound"] = True', "test_soundness_check.py"),
    # the user's own data, and a model in use
    "column radii without the rounding of scaling": ("data/schema.py", "- _ROUNDING  # no feature", "  # no feature", "data/test_schema.py"),
    "column radii without the rounding of text": ("data/schema.py", "scaled * width - Fraction(math.ulp(largest))", "scaled * width", "data/test_schema.py"),
    "boxes of a table not scaled": ("certificates/column_radii.py", "scaled = width / range_ + _SLACK", "scaled = width / range_ / 2 + _SLACK", "test_own_data.py -k scaled_box"),
    "bounds of a report not compared": ("report/robustness.py", "if sorted(stated.splitlines()) != sorted(", "if False and sorted(stated.splitlines()) != sorted(", "hostile/test_own_data.py -k wider"),
    "standardised inputs trained on": ("run_training.py", "if job.has_range and job.input_range is not None:", "if False:", "test_own_data.py -k standardised"),
    "number of rows told by a share": ("run_training.py", "job.loaded.by_share and config.training", "False and config.training", "test_own_data.py -k private"),
    "other test data taken for the run's own": ("run_data.py", "if expected not in (None, examples_digest(", "if False and expected not in (None, examples_digest(", "test_own_data.py -k moved"),
    "another table scaled by itself": ("run_data.py", 'return load_data(dataset, preprocessing=record.get("preprocessing"))', "return load_data(dataset)", "test_own_data.py -k another"),
    "presets from a private number of examples": ("config.py", 'examples = public if name == "population" and isinstance(public, int) and public > 0 else None', "pass", "test_planning.py -k not_public"),
    "one answer praised": ("theory/class_balance.py", "self.top_share >= NEARLY_ALL:", "self.top_share > 2:", "theory/test_class_balance.py"),
    "ranges of memory taken for 0 to 1": ("prediction.py", "None if in_memory else (0.0, 1.0)", "(0.0, 1.0)", "hostile/test_use.py -k whatever"),
    "the folder of an unfinished run served": ("serve/answers.py", "if (folder / SECRET).exists():", "if False:", "serve"),
    "abstentions count as right": ("certificates/summary.py", 'return not row["abstained"] and row["prediction"] == row["label"]', 'return row["prediction"] == row["label"]', "certificates/test_summary.py"),
    # files
    "written through a link": ("runtime/storage.py", "draft.replace(path)", "path.write_bytes(content)", "test_files.py -k no_link_in_a_run"),
    "a guessed name is written through": ("runtime/storage.py", "os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode", "os.O_TRUNC | os.O_CLOEXEC, mode", "test_files.py -k guessed"),
    "ledger opened through a link": ("runtime/append_only_file.py", "os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_RDWR | os.O_NONBLOCK", "test_files.py -k ledger_is_not"),
    "half a file kept after a failed write": ("runtime/storage.py", "                draft.unlink(missing_ok=True)\n    _remove", "                pass\n    _remove", "test_files.py -k failed_write"),
    "pipes are read": ("runtime/storage.py", "if not stat.S_ISREG(os.fstat(descriptor).st_mode):", "if False:", "test_files.py -k only_regular"),
    "files of any size are read": ("runtime/storage.py", "content = file.read(limit + 1)", "content = file.read(limit)", "test_files.py -k only_regular"),
    "infinite numbers in JSON": ("runtime/storage.py", "elif isinstance(item, float) and not math.isfinite(item):", "elif False:", "test_files.py -k json_that_is_refused"),
    "JSON of any depth": ("runtime/storage.py", "if depth > MAX_NESTING:", "if False:", "test_files.py -k json_that_is_refused"),
    "a key twice in JSON": ("runtime/storage.py", "if len(record) != len(pairs):", "if False:", "test_files.py -k json_that_is_refused"),
    "a failed start stays": ("run_training.py", "        if is_new:", "        if False:", "test_files.py -k start_without_room"),
    "a refused start empties another's folder": ("run_training.py", "is_new = not files.occupied", "is_new = True", "test_files.py -k by_a_training"),
    "a failed start drops a ledger that counts": ("run_training.py", "                if opened.events:", "                if False:", "test_files.py -k after_a_release"),
    "header of an npz believed": ("data/npz_file.py", "if claimed > member.file_size:", "if False:", "test_files.py -k header_lies"),
    "zip bomb unpacked": ("data/npz_file.py", "unpacked > max(_FREE, _RATIO * size)", "unpacked < 0", "test_files.py -k unpacks_to"),
    "giant picture decoded": ("data/image_files.py", "> _MOST_PIXELS:", "> 1 << 60:", "test_files.py -k picture_that_claims"),
    "counts without limit": ("validate.py", "not at_least <= number <= at_most", "not at_least <= number", "test_files.py -k without_limit"),
    "settings of a cell edited": ("attacks/cells.py", 'if not name.endswith(_digest(entry["attack"], entry["measured"])):', "if False:", "test_files.py -k edited_cell"),
    "an example attacked twice": ("attacks/cells.py", 'if len({(row["cell"], row["index"]) for row in present}) < len(present):', "if False:", "test_files.py -k row_twice"),
    "numbers of a table not checked": ("runtime/tables.py", 'if not (isinstance(row[name], float) and math.isfinite(row[name])):', "if False:", "test_files.py -k cell_that_is_no_number"),
    # interval bounds
    "weights of boxes with their sign": ("certificates/interval/prepared.py", "absolute=weight.abs()\n        +", "absolute=weight\n        +", "certificates/test_interval_boxes.py -k every_value"),
    "margins of a rival over the class": ("certificates/interval/boxes.py", "rows, shift = layer.weight[y] - layer.weight, layer.bias[y] - layer.bias", "rows, shift = layer.weight - layer.weight[y], layer.bias - layer.bias[y]", "certificates/test_interval_boxes.py -k below_the_truth"),
    "ends of a curved activation swapped": ("certificates/interval/boxes.py", "Box.between(low - low_error, high + high_error)", "Box.between(high - low_error, low + high_error)", "certificates/test_interval_boxes.py -k every_value"),
    "ends of an exact activation swapped": ("certificates/interval/boxes.py", "for end in (lower, upper)))", "for end in (upper, lower)))", "certificates/test_interval_boxes.py -k every_value"),
    "layers of boxes do not round": ("certificates/interval/prepared.py", "error=gamma(terms + 2, arithmetic.unit) + slack", "error=slack", "certificates/test_interval_boxes.py -k cancelling"),
    "bias of a box does not round": ("certificates/interval/boxes.py", "layer.error * layer.bias.abs() + layer.underflow)", "0 * layer.bias + layer.underflow)", "certificates/test_interval_boxes.py -k large_bias"),
    "bias of a margin does not round": ("certificates/interval/boxes.py", "(box.magnitude @ layer.absolute.T + layer.bias.abs())", "(box.magnitude @ layer.absolute.T)", "certificates/test_interval_boxes.py -k large_bias"),
    "bias of a linear bound does not round": ("certificates/interval/boxes.py", "layer.apply(box.magnitude, layer.absolute, layer.bias.abs())", "layer.apply(box.magnitude, layer.absolute, None)", "certificates/test_interval_boxes.py -k large_bias"),
    "input of a box not rounded": ("certificates/interval/boxes.py", "return Box.between((lower.to(own) - tiny).to(net.dtype), (upper.to(own) + tiny).to(net.dtype))", "return Box.between(lower.to(net.dtype), upper.to(net.dtype))", "certificates/test_interval_boxes.py -k every_value"),
    "activations of lines do not round": ("certificates/interval/linear_bounds.py", "loss = error + net.slack * (inputs[0].magnitude", "loss = 0 * error + net.slack * (inputs[0].magnitude", "certificates/test_interval_boxes.py -k ten_units"),
    "activations of boxes do not round": ("certificates/interval/boxes.py", "_ACTIVATION_ULPS = 16", "_ACTIVATION_ULPS = 0", "certificates/test_interval_boxes.py -k ten_units"),
    "sums of two boxes do not round": ("certificates/interval/boxes.py", "boxes[1].magnitude, gamma(4, unit) + net.slack", "boxes[1].magnitude, net.slack", "certificates/test_interval_boxes.py -k sum_of_two"),
    "overflow in a box is not noticed": ("certificates/interval/boxes.py", "return value if bool(radius.amax() <= limit) else torch.where(radius <= limit, value, math.nan)", "return value", "certificates/test_interval_boxes.py -k overflow"),
    "NaN counts as proven": ("certificates/interval/search.py", "    stride, turn = np.ones_like(known), 0\n    while len(open_ := np.flatnonzero(high - low > 1)):\n        at = probe[open_]\n        value = margin(open_, at)\n        holds = value > 0\n", "    stride, turn = np.ones_like(known), 0\n    while len(open_ := np.flatnonzero(high - low > 1)):\n        at = probe[open_]\n        value = margin(open_, at)\n        holds = ~(value <= 0)\n", "certificates/test_interval_search.py"),
    "guessed radius returned without proof": ("certificates/interval/search.py", "    low, high = known.copy(), np.full_like(known, most + 1)\n    probe", "    low, high = np.maximum(known, np.floor(crossing).astype(np.int64)), np.full_like(known, most + 1)\n    probe", "certificates/test_interval_search.py"),
    "one step beyond the proof": ("certificates/interval/search.py", "high[stays] = low[stays] + 1  #", "low[stays] += 1  #", "certificates/test_interval_search.py"),
    "proven at a smaller radius than returned": ("certificates/interval/radius.py", "return self._margins(self._question.proof, lines, part[examples], self.radius(steps) * _GUARD)", "return self._margins(self._question.proof, lines, part[examples], self.radius(steps) * 0.9)", "certificates/test_interval_radius.py -k proves_the_radius"),
    "half-widths of a box ignored": ("certificates/interval/radius.py", "reach * widths.to(net.device).double(), self._range)", "reach * torch.ones_like(x), self._range)", "certificates/test_interval_radius.py -k box_of_its_own"),
    "slopes of lines swapped": ("certificates/interval/linear_bounds.py", "(lines.low_slope - lines.high_slope) / 2", "(lines.high_slope - lines.low_slope) / 2", "certificates/test_interval_linear.py -k changes_sign"),
    "heights of lines swapped": ("certificates/interval/linear_bounds.py", "_dot(absolute, (lines.low - lines.high) / 2 - loss)", "_dot(absolute, (lines.high - lines.low) / 2 - loss)", "certificates/test_interval_linear.py -k smaller_margin"),
    "linear bound of another rival": ("certificates/interval/linear_bounds.py", "torch.maximum(margins[rows, rivals], linear)", "torch.maximum(margins[rows, rivals], linear.flip(1))", "certificates/test_interval_linear.py -k leave_open"),
    "rivals that boxes leave open are forgotten": ("certificates/interval/linear_bounds.py", "torch.where(left | (counts == 0)[:, None], margins, math.inf)", "torch.where(~left, margins, math.inf)", "certificates/test_interval_linear.py -k leave_open"),
    "radius of a dense layer without its sign": ("clipping/rules/interval.py", "    sign = weight.sign()\n", "    sign = torch.ones_like(weight)\n", "clipping/test_clipping_interval.py -k loop_over"),
    "centre and radius measured apart": ("clipping/rules/interval.py", "squares += 2 * (((g[:, p]", "squares += 0 * (((g[:, p]", "clipping/test_clipping_interval.py -k loop_over"),
    "margins of the class itself not in the gradient": ("clipping/rules/interval.py", "both = pairs[part] + pairs[part].transpose(2, 3)", "both = 1 * pairs[part]", "clipping/test_clipping_interval.py -k loop_over"),
    "weights of zero measured by the formula": ("clipping/rules/interval.py", "or joint == 1 or not bool(sign.all()):", "or joint == 1:", "clipping/test_clipping_interval.py -k zero"),
    "streams that cancel in a joint product": ("clipping/rules/interval.py", "        together = factors.masked_fill(alone, 0.0)\n", "        alone[:] = False\n        together = factors\n", "clipping/test_clipping_interval.py -k cancel"),
    "radius of training never grows": ("models/interval_network.py", "        self.steps_done += 1\n", "        pass\n", "models/test_interval_network.py -k schedule"),
    "shares of the two losses swapped": ("models/interval_network.py", "self.clean_weight * clean + (1 - self.clean_weight) * worst", "(1 - self.clean_weight) * clean + self.clean_weight * worst", "models/test_interval_network.py -k both_parts"),
    "worst scores of another label": ("models/interval_network.py", "outputs[rows, 1 + targets]", "outputs[rows, targets]", "models/test_interval_network.py -k both_parts"),
}  # fmt: skip


# A test notices by an assertion, by a refusal that does not come, or by a refusal that should not come: not because the
# mutated file cannot be imported or fails with an error of Python's own. A failure in a fixture is an ERROR line.
KILL = re.compile(r"^FAILED \S.*? - (AssertionError|assert |Failed: DID NOT (RAISE|WARN)|securesgd\.errors\.)", re.M)


def notices(returncode: int, output: str) -> bool:
    """Return whether a run of pytest, by its exit code and summary, is one in which a test noticed a mutation."""
    return returncode == 1 and KILL.search(output) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_guarantee_is_noticed(name, tmp_path):
    file, text, replacement, tests = MUTATIONS[name]
    copy = tmp_path / "src" / "securesgd"
    shutil.copytree(ROOT / "src" / "securesgd", copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = (copy / file).read_text()
    assert source.count(text) == 1, f"{file} has {source.count(text)} times: {text}"
    (copy / file).write_text(source.replace(text, replacement))
    path, *selection = tests.split()
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--maxfail=3",
            "-p",
            "no:cacheprovider",
            str(ROOT / "tests" / path),
            *selection,
        ],
        env=os.environ | {"PYTHONPATH": str(copy.parent), "CI": "1"},  # CI: the summary gives reasons in full
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert notices(result.returncode, result.stdout), result.stdout[-2000:]


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (1, "FAILED tests/test_a.py::test_b[x - y] - AssertionError: no", True),
        (1, "FAILED tests/test_a.py::test_b - assert 1 == 2", True),
        (1, "FAILED tests/test_a.py::test_b - Failed: DID NOT RAISE <class 'securesgd.errors.PrivacyError'>", True),
        (1, "FAILED tests/test_a.py::test_b - securesgd.errors.PrivacyError: delta is 2", True),
        (1, "FAILED tests/test_a.py::test_b - NameError: name 'x' is not defined", False),
        (1, "FAILED tests/test_a.py::test_b - ImportError: cannot import name 'AssertionError'", False),
        (1, "ERROR tests/test_a.py::test_b - AssertionError: in a fixture", False),
        (2, "ERROR tests/test_a.py - SyntaxError: invalid syntax", False),
        (0, "1 passed", False),
        (5, "no tests ran", False),
    ],
)
def test_only_a_failed_assertion_or_refusal_counts(code, line, expected):
    assert notices(code, f"=== short test summary info ===\n{line}\n") is expected


def test_every_mutation_names_text_that_is_there():
    for name, (file, text, _, tests) in MUTATIONS.items():
        assert (ROOT / "src" / "securesgd" / file).read_text().count(text) == 1, name
        assert (ROOT / "tests" / tests.split()[0]).exists(), name
