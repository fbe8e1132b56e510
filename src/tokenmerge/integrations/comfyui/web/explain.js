// Shows what Token Merge Explain says on the node itself.
import { app } from "../../scripts/app.js";
import { ComfyWidgets } from "../../scripts/widgets.js";

const SIZE = [760, 420];

function widgetOf(node) {
  const found = node.widgets?.find((widget) => widget.name === "shown");
  if (found) return found;
  const options = ["STRING", { multiline: true }];
  const { widget } = ComfyWidgets.STRING(node, "shown", options, app);
  widget.serialize = false; // of the workflow's file
  widget.options.serialize = false; // of the prompt
  widget.inputEl.readOnly = true;
  widget.inputEl.style.fontFamily = "monospace";
  widget.inputEl.style.whiteSpace = "pre-wrap"; // the table's columns stay below each other
  node.setSize(SIZE);
  return widget;
}

app.registerExtension({
  name: "tokenmerge.explain",
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== "TokenMergeExplain") return;
    const before = nodeType.prototype.onExecuted;
    nodeType.prototype.onExecuted = function (message) {
      before?.apply(this, arguments);
      widgetOf(this).value = message.text.join("\n");
      this.setDirtyCanvas(true, true);
    };
  },
});
