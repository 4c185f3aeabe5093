//! The pages of migrations: the table of all that exist in the cluster, and the details of each with its progress and
//! the reason for which it waits.

use drydock_view::{
    explain::explained_migration::{MigrationExplanation, migration},
    guest_tables::{MigrationRow, migrations},
};
use maud::{Markup, html};

use super::{
    PageContext,
    parts::{
        Confirmation, ago, command, filter, form, heading, identity, machine_path, no_match, node_path, opens,
        pagination, segment, table,
    },
};
use crate::console::{
    page::{DIALOG, Page, ROOT},
    rights::UserAction,
    view::{ROWS, ViewPath},
};

const BODY: &str = "migration-rows";
const HEADINGS: [&str; 7] = ["Virtual machine", "Phase", "From", "To", "Progress", "Why", "Age"];

pub(super) fn list(path: &ViewPath, context: &PageContext<'_>) -> Page {
    let all = migrations(context.snapshot);
    let running = all.iter().filter(|row| !row.phase.is_final()).count();
    let mut page = Page::new("Migrations");
    let text = format!("{running} running or waiting, {} ended", all.len() - running);
    heading(&mut page, "Migrations", &text);
    if all.is_empty() {
        page.push(
            ROOT,
            "none",
            html! {
                section #none .empty {
                    h2 { "No migrations" }
                    p {
                        "Migrations are created by the drain of a node, by " code { "virtctl migrate" }
                        " and by any eviction of a virtual machine."
                    }
                }
            },
        );
        return page;
    }
    filter(&mut page, path, "migrations");
    page.push(ROOT, "migrations", table("migrations", "migrations", &HEADINGS, BODY));
    let shown: Vec<&MigrationRow> = all.iter().filter(|row| path.shows(texts(row))).collect();
    if shown.is_empty() {
        page.push(BODY, "no-match", no_match(path, HEADINGS.len(), "migration"));
    }
    for row in shown.iter().skip(path.page * ROWS).take(ROWS) {
        page.push(
            BODY,
            identity("migration", &[&row.namespace, &row.name]),
            line(row, context),
        );
    }
    pagination(&mut page, path, "/migrations", shown.len(), "migrations");
    page
}

fn texts(row: &MigrationRow) -> impl Iterator<Item = &str> {
    let nodes = [row.source.as_deref(), row.target.as_deref()];
    [row.namespace.as_str(), &row.name, &row.instance, row.phase.as_str()]
        .into_iter()
        .chain(nodes.into_iter().flatten())
}

fn line(row: &MigrationRow, context: &PageContext<'_>) -> Markup {
    html! {
        tr id=(identity("migration", &[&row.namespace, &row.name])) {
            th scope="row" { a href=(path_of(&row.namespace, &row.name)) { (row.namespace) "/" (row.instance) } }
            td { (row.phase.as_str()) }
            td { (place(row.source.as_deref())) }
            td { (place(row.target.as_deref())) }
            td.number { (row.progress.join(", ")) }
            td.why-cell { (row.message) }
            td { @if let Some(created) = row.created { (ago(context.now, created)) } }
        }
    }
}

fn place(node: Option<&str>) -> Markup {
    html! { @match node { Some(node) => a href=(node_path(node)) { (node) }, None => span.quiet { "–" } } }
}

fn path_of(namespace: &str, name: &str) -> String {
    format!("/migrations/{}/{}", segment(namespace), segment(name))
}

pub(super) fn page(namespace: &str, name: &str, context: &PageContext<'_>) -> Page {
    let Some(found) = migration(context.snapshot, namespace, name) else {
        return Page::missing(&format!("migration {namespace}/{name}"));
    };
    let mut page = Page::new(format!("{namespace}/{name}"));
    page.announce(format!("{}: {}", found.name, found.phase.as_str()));
    page.push(ROOT, "head", head(&found, context));
    page.push(ROOT, "course", course(&found));
    page
}

fn head(found: &MigrationExplanation, context: &PageContext<'_>) -> Markup {
    let cancel = format!("/cancel/{}/{}", segment(&found.namespace), segment(&found.name));
    html! {
        header #head {
            nav aria-label="Breadcrumb" { a href="/migrations" { "Migrations" } " / " (found.namespace) "/" (found.name) }
            div.title {
                h1 { (found.namespace) "/" (found.name) }
                @if !found.phase.is_final() {
                    details.menu.actions #actions {
                        summary { "Actions" }
                        div.items { (opens("Cancel migration", &cancel, UserAction::Cancel, context)) }
                    }
                }
            }
            p.summary {
                (found.phase.as_str())
                @if let Some(since) = found.since { " for " (ago(context.now, since)) }
                ", of " a href=(machine_path(&found.namespace, &found.instance)) { (found.namespace) "/" (found.instance) }
            }
            dl.facts {
                div { dt { "From" } dd { (place(found.source.as_deref())) } }
                div { dt { "To" } dd { (place(found.target.as_deref())) } }
            }
            @if !found.message.is_empty() { p { (found.message) } }
        }
    }
}

fn course(found: &MigrationExplanation) -> Markup {
    html! {
        section #course aria-label="Course" {
            @if let Some(queue) = &found.queue {
                h2 { "Queue" }
                p {
                    "The migration " (queue.stage)
                    @if let Some(place) = queue.place { ": position " (place) " of " (queue.waiting) }
                    @if let Some(limit) = queue.limit { ", limited by " (limit) }
                    ". Urgency: " (queue.urgency) "."
                }
                @if !queue.running.is_empty() { p.quiet { "Slots used by: " (queue.running.join(", ")) } }
            }
            @if !found.sides.is_empty() {
                h2 { "Source and target" }
                ul.conditions { @for side in &found.sides { li { (side) } } }
            }
            (command(&format!("kubectl drydock explain migration {}/{}", found.namespace, found.name)))
        }
    }
}

/// Returns the dialog that cancels a migration, with the consequences.
pub(super) fn dialog(namespace: &str, name: &str, context: &PageContext<'_>) -> Page {
    let title = format!("Cancel migration {namespace}/{name}");
    let mut page = Page::new(title.clone());
    page.push(DIALOG, "dialog-title", html! { h2 #dialog-title { (title) } });
    let found = migration(context.snapshot, namespace, name);
    let runs = found.as_ref().is_some_and(|found| !found.phase.is_final());
    let content = html! {
        @if runs {
            p {
                "The virtual machine continues on its current node. If the migration can no longer be cancelled, it is "
                "completed."
            }
            p { "If the node is being drained, the migration is retried later." }
        } @else {
            p.banner { "The migration has ended." }
        }
    };
    let question = Confirmation {
        id: "cancel-form",
        path: "/api/cancel",
        hidden: &[("namespace", namespace), ("name", name)],
        content,
        action: UserAction::Cancel,
        open: runs,
        label: "Cancel migration",
        command: format!("kubectl delete vmim -n {namespace} {name}"),
    };
    page.push(DIALOG, question.id, form(&question, context));
    page
}
